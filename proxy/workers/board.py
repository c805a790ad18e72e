"""What all workers have to know: the newest value under each name. Pure.

Each change has a version. Who has seen everything up to one asks for what is newer, and gets
each name once, however often it was written meanwhile. So nothing can be lost between two
readers, who comes late gets the whole as everybody else gets the news, and a reader that stands
still costs no memory.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from proxy.workers.words import Entry

MOST_TAKEN_AWAY = 4096
Key = tuple[str, str]


@dataclass(slots=True)
class Board:
    """The last change last; what was taken away is remembered for those who have it."""

    version: int = 0
    _entries: OrderedDict[Key, tuple[int, Entry]] = field(default_factory=OrderedDict)
    _taken_away: OrderedDict[Key, None] = field(default_factory=OrderedDict)

    def put(self, kind: str, name: str, value: bytes | None) -> int:
        """Write it, None to take it away; the version that has it."""
        key = (kind, name)
        self.version += 1
        self._entries[key] = (self.version, Entry(kind, name, value))
        self._entries.move_to_end(key)
        self._taken_away.pop(key, None)
        if value is None:
            self._taken_away[key] = None
            while len(self._taken_away) > MOST_TAKEN_AWAY:
                oldest, _ = self._taken_away.popitem(last=False)
                del self._entries[oldest]
        return self.version

    def forget(self, kind: str, name: str) -> None:
        """Readers forget this one by themselves."""
        self._entries.pop((kind, name), None)
        self._taken_away.pop((kind, name), None)

    def since(self, version: int) -> Sequence[Entry]:
        """What was written after that version, oldest first; after 0 only what is there."""
        found = list[Entry]()
        for changed, entry in reversed(self._entries.values()):
            if changed <= version:
                break
            if version or entry.value is not None:
                found.append(entry)
        return found[::-1]
