"""Which place on disk holds which key. The least recently used key is evicted first."""

from collections import OrderedDict
from collections.abc import Iterable

from engine.cache_events import Medium
from engine.tiers.listening import NobodyListens, TierListener


class DiskBook:
    """Keys and places. A key can be found once it is written, not while it is being written.

    `known` are the keys and places of an earlier run, the least recently used first. Reads are
    carried out before writes, so a place may be given to another key while a read of its
    previous key is still queued. A disk that is full keeps the places that it has by then, and
    loses those that could not be written.
    """

    def __init__(self, places: int, known: Iterable[tuple[bytes, int]] = ()) -> None:
        self.places = places
        self.listener: TierListener = NobodyListens()
        self._place_of = OrderedDict(known)
        taken = set(self._place_of.values())
        self._freed = [place for place in range(max(taken, default=-1)) if place not in taken]
        self._next = max(taken, default=-1) + 1
        self._writing: dict[bytes, int] = {}
        self._lost: set[int] = set()

    def __len__(self) -> int:
        return len(self._place_of)

    def __contains__(self, key: bytes) -> bool:
        return key in self._place_of

    @property
    def has_places(self) -> bool:
        """Whether anything can be kept."""
        return self.places > len(self._lost)

    def find(self, key: bytes) -> int | None:
        """A key's place, or None; marks it as just used."""
        if key in self._place_of:
            self._place_of.move_to_end(key)
        return self._place_of.get(key)

    def begin(self, key: bytes) -> int | None:
        """A place to write a key to; None: it is there, or all places are being written."""
        if key in self._place_of or key in self._writing:
            return None
        if self._freed:
            place = self._freed.pop()
        elif self._next < self.places:
            place = self._next
            self._next += 1
        elif self._place_of:
            oldest, place = self._place_of.popitem(last=False)
            self.listener.left(oldest, Medium.DISK)
        else:
            return None
        self._writing[key] = place
        return place

    def written(self, key: bytes) -> None:
        """The key was written: it can be found from now on."""
        self._place_of[key] = self._writing.pop(key)
        self.listener.entered(key, Medium.DISK)

    def failed(self, key: bytes) -> None:
        """The key could not be written, as the disk is full: nor can its place, or new ones."""
        self._lost.add(self._writing.pop(key))
        self.places = self._next

    def forget(self, key: bytes) -> None:
        """The key could not be read: drop it."""
        if key in self._place_of:
            self._freed.append(self._place_of.pop(key))
            self.listener.left(key, Medium.DISK)

    def lose_all(self) -> None:
        """The disk is broken: nothing is there any more."""
        for key in self._place_of:
            self.listener.left(key, Medium.DISK)

    def check(self) -> None:
        """Raise if the bookkeeping is inconsistent. Slow, for tests."""
        kept = *self._place_of.values(), *self._writing.values()
        places = [*self._freed, *self._lost, *kept]
        assert sorted(places) == list(range(self._next)), "a place is lost, or has two keys"
        assert self._next <= self.places, "more is kept than may be"
