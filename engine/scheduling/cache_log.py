"""A log of what enters and leaves the prefix cache."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from engine.cache_events import BlocksRemoved, BlocksStored, CacheEvent
from engine.scheduling.sequence import Sequence
from engine.scheduling.tier_log import TierContents, TierLog


@dataclass(slots=True)
class CacheLog:
    """Collects events until they are taken, in their order.

    A block whose KV another node computed enters the prefix cache by its key alone. It is
    logged when the first sequence adopts it, which knows its tokens; and not at all if it is
    evicted before. So a block is stored and removed in turn. `tiers` logs what becomes of
    evicted blocks, if there are tiers below KV memory.
    """

    block_size: int
    tiers: TierLog | None = None
    _told: set[bytes] = field(default_factory=set)
    _events: list[CacheEvent] = field(default_factory=list)
    _removed: list[bytes] = field(default_factory=list)  # since the last event

    def add_tiers(self, contents: TierContents) -> TierLog:
        """Log lower tiers as well; to be called before the first event."""
        self.tiers = TierLog(contents, self._told)
        return self.tiers

    def store(self, seq: Sequence, first: int, end: int) -> None:
        """Log its cached blocks from `first` to before `end`, as far as they are new."""
        begin = first
        for index in range(first, end + 1):
            if index < end and seq.keys[index] not in self._told:
                continue
            if begin < index:
                self._store(seq, begin, index)
            begin = index + 1

    def remove(self, key: bytes) -> None:
        """Log that the block of this key was evicted."""
        if key in self._told:
            self._told.remove(key)
            self._removed.append(key)
            if self.tiers is not None:
                self.tiers.forget(key)

    def take(self) -> Seq[CacheEvent]:
        """The events since the last call."""
        self._log_removed()
        events, self._events = self._events, []
        return events if self.tiers is None else [*events, *self.tiers.take()]

    def _log_removed(self) -> None:
        if self._removed:
            self._events.append(BlocksRemoved(tuple(self._removed)))
            self._removed.clear()

    def _store(self, seq: Sequence, begin: int, end: int) -> None:
        keys, size, request = tuple(seq.keys[begin:end]), self.block_size, seq.request
        parent = seq.keys[begin - 1] if begin else None
        tokens = tuple(seq.tokens[begin * size : end * size])
        self._log_removed()
        self._told.update(keys)
        event = BlocksStored(keys, parent, tokens, request.adapter, request.cache_salt)
        self._events.append(event)
        if self.tiers is not None:
            self.tiers.describe(event)
