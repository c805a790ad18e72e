"""Reads from a source's memory: what to read, and what became of it. Pure.

A source may answer and its memory not: a read that never ends would hold its blocks for ever.
So reads have a time, within which one of those over the same link has to end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kv_transfer.blocks.mapping import WHOLE_BLOCKS, BlockMapping
from kv_transfer.checking import ExpectedChecksum
from kv_transfer.ledger.known_sources import Address
from kv_transfer.ledger.pull import Pull
from kv_transfer.regions import BlockRun
from kv_transfer.wire import SILENCE_S, Welcome

SLOT_S = 0.01  # what a block may take besides


@dataclass(frozen=True, slots=True)
class ReadOrder:
    """Slots to be read from one source; `read_id` comes back when they are here.

    `cut` says what a slot is: a block, where both sides' blocks are alike. `checks` has what
    the checksum of each of them has to be, or nothing.
    """

    read_id: int
    address: Address
    runs: Sequence[BlockRun]
    checks: Sequence[ExpectedChecksum] = ()
    cut: BlockMapping = WHOLE_BLOCKS


@dataclass(slots=True)
class _Read:
    """One read under way; nothing has moved over its link since `moved_at`."""

    pull: Pull
    host: Welcome
    slots: int
    moved_at: float


@dataclass(slots=True)
class ReadBook:
    """Every read from its order to its end: for which pull, and over which meeting."""

    _open: dict[int, _Read] = field(default_factory=dict)
    _num_reads: int = 0

    def order(
        self, pull: Pull, host: Welcome, cut: BlockMapping, *, now: float
    ) -> ReadOrder | None:
        """One read of all that can be read by now, of the memory that `host` told of."""
        runs, checks = pull.take_runs(cut)
        if not runs:
            return None
        pull.read_begins(now=now)
        self._num_reads += 1
        self._open[self._num_reads] = _Read(pull, host, runs.total, now)
        return ReadOrder(self._num_reads, pull.address, runs, checks, cut)

    def end(self, read_id: int, *, now: float) -> tuple[Pull, Welcome]:
        """It will write no more; whose it was, and who was met at its start."""
        ended = self._open.pop(read_id)
        for read in self._open.values():
            if read.host is ended.host:
                read.moved_at = now
        ended.pull.read_ends(now=now)
        return ended.pull, ended.host

    def restart_timeouts(self, now: float) -> None:
        """Nobody looked for a while: what has moved meanwhile is seen in a moment only."""
        for read in self._open.values():
            read.moved_at = now

    def is_stuck(self, host: Welcome, *, now: float) -> bool:
        """Whether none of the reads over this meeting has ended in the time for them."""
        reads = [read for read in self._open.values() if read.host is host]
        if not reads:
            return False
        time_s = SILENCE_S + SLOT_S * sum(read.slots for read in reads)
        return now - min(read.moved_at for read in reads) >= time_s
