"""Which slot of host memory holds which key. The least recently used key is evicted first."""

from collections import OrderedDict

from engine.cache_events import Medium
from engine.tiers.listening import NobodyListens, TierListener


class HostBook:
    """Keys and slots. Pinned keys keep their slots; the least recently used lose them first."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.listener: TierListener = NobodyListens()
        self._unused = list(range(slots - 1, -1, -1))
        self._slot_of: dict[bytes, int] = {}
        self._pins: dict[bytes, int] = {}
        self._idle: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._slot_of)

    def __contains__(self, key: bytes) -> bool:
        return key in self._slot_of

    def find(self, key: bytes) -> int | None:
        """A key's slot, or None; marks it as just used."""
        if key in self._idle:
            self._idle.move_to_end(key)
        return self._slot_of.get(key)

    def place(self, key: bytes) -> int | None:
        """A slot for a key that has none; None if all are pinned."""
        if self._unused:
            slot = self._unused.pop()
        elif self._idle:
            oldest, _ = self._idle.popitem(last=False)
            slot = self._slot_of.pop(oldest)
            self.listener.left(oldest, Medium.HOST_MEMORY)
        else:
            return None
        self._slot_of[key] = slot
        self._idle[key] = None
        return slot

    def filled(self, key: bytes) -> None:
        """The key's bytes are in its slot, or are copied there before anything else."""
        self.listener.entered(key, Medium.HOST_MEMORY)

    def pin(self, key: bytes) -> None:
        """Keep a key in its slot until it has been unpinned as often as pinned."""
        self._pins[key] = self._pins.get(key, 0) + 1
        self._idle.pop(key, None)

    def unpin(self, key: bytes) -> None:
        """Undo one `pin`."""
        self._pins[key] -= 1
        if not self._pins[key]:
            del self._pins[key]
            self._idle[key] = None

    def drop(self, key: bytes) -> None:
        """Forget a pinned key whose slot was never filled, and its pins."""
        self._unused.append(self._slot_of.pop(key))
        del self._pins[key]

    def check(self, pinned: int) -> None:
        """Raise if the bookkeeping is inconsistent. Slow, for tests."""
        slots = sorted([*self._unused, *self._slot_of.values()])
        assert slots == list(range(self.slots)), "a slot is lost, or has two keys"
        assert sum(self._pins.values()) == pinned, "somebody pins without knowing"
        assert {*self._idle} == {*self._slot_of} - {*self._pins}, "idle is what nobody pins"
