"""The state that all workers share: the newest value under each name, with versions. Pure.

Every change gets the next version. A reader that has everything up to a version asks for the
entries after it, and gets each name once, however often it changed. So no change is lost
between two reads, a worker that joins late reads everything as an update from version 0, and a
slow reader costs no memory.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from proxy.workers.messages import SharedEntry

MAX_TOMBSTONES = 4096
Key = tuple[str, str]


@dataclass(slots=True)
class SharedState:
    """Entries in the order of their last change; deleted ones stay as tombstones for a while,
    so that readers that have the value learn of its deletion.
    """

    version: int = 0
    _entries: OrderedDict[Key, tuple[int, SharedEntry]] = field(default_factory=OrderedDict)
    _tombstones: OrderedDict[Key, None] = field(default_factory=OrderedDict)

    def put(self, kind: str, name: str, value: bytes | None) -> int:
        """Set the value, or delete it with None; returns the version of this change."""
        key = (kind, name)
        self.version += 1
        self._entries[key] = (self.version, SharedEntry(kind, name, value))
        self._entries.move_to_end(key)
        self._tombstones.pop(key, None)
        if value is None:
            self._tombstones[key] = None
            while len(self._tombstones) > MAX_TOMBSTONES:
                oldest, _ = self._tombstones.popitem(last=False)
                del self._entries[oldest]
        return self.version

    def forget(self, kind: str, name: str) -> None:
        """Delete it without a tombstone: readers expire it by themselves."""
        self._entries.pop((kind, name), None)
        self._tombstones.pop((kind, name), None)

    def entries_since(self, version: int) -> Sequence[SharedEntry]:
        """Entries changed after `version`, oldest first; since 0 without tombstones."""
        found = list[SharedEntry]()
        for changed, entry in reversed(self._entries.values()):
            if changed <= version:
                break
            if version or entry.value is not None:
                found.append(entry)
        return found[::-1]
