"""Reads from a source's memory: what to read, and when a read is stuck. Pure.

A source may still answer while its memory does not: a read that never ended would hold its
blocks forever. So of the reads over one link, one has to end within a time limit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kv_transfer.blocks.mapping import WHOLE_BLOCKS, BlockMapping
from kv_transfer.blocks.sequence_mapping import SequenceMapping
from kv_transfer.checking import ExpectedChecksum
from kv_transfer.ledger.known_sources import Address
from kv_transfer.ledger.pull import Pull
from kv_transfer.regions import BlockRun
from kv_transfer.wire import SILENCE_S, Welcome

SLOT_S = 0.01  # additional time allowed for each slot
BYTE_S = 1e-8  # and for each byte: a network of 1 Gbit/s needs less


@dataclass(frozen=True, slots=True)
class ReadOrder:
    """Slots to read from one source; `read_id` is returned when they are here.

    `cut` says what a slot is: a block, if both sides have the same layout. `checks` has the
    expected checksum of each slot, or is empty.
    """

    read_id: int
    address: Address
    runs: Sequence[BlockRun]
    checks: Sequence[ExpectedChecksum] = ()
    cut: BlockMapping = WHOLE_BLOCKS


@dataclass(slots=True)
class _Read:
    """A read in flight; no read over its link has ended since `moved_at`."""

    pull: Pull
    host: Welcome
    allowed_s: float
    moved_at: float


@dataclass(slots=True)
class ReadBook:
    """Every read from its order to its end: its pull, and the Welcome that it began with."""

    _open: dict[int, _Read] = field(default_factory=dict)
    _num_reads: int = 0

    def order(
        self, pull: Pull, host: Welcome, way: SequenceMapping, *, now: float
    ) -> ReadOrder | None:
        """One read of all that can be read by now, from the memory of `host`."""
        if (read := pull.take_read(way)) is None:
            return None
        cut, runs, checks = read
        pull.read_begins(now=now)
        self._num_reads += 1
        allowed_s = runs.total * (SLOT_S + BYTE_S * cut.slot_bytes)
        self._open[self._num_reads] = _Read(pull, host, allowed_s, now)
        return ReadOrder(self._num_reads, pull.address, runs, checks, cut)

    def end(self, read_id: int, *, now: float) -> tuple[Pull, Welcome]:
        """The read will write no more; returns its pull and the Welcome that it began with."""
        ended = self._open.pop(read_id)
        for read in self._open.values():
            if read.host is ended.host:
                read.moved_at = now
        ended.pull.read_ends(now=now)
        return ended.pull, ended.host

    def restart_timeouts(self, now: float) -> None:
        """The thread was stalled: count every timeout from now."""
        for read in self._open.values():
            read.moved_at = now

    def is_stuck(self, host: Welcome, *, now: float) -> bool:
        """Whether none of the reads that began with this Welcome has ended in time."""
        reads = [read for read in self._open.values() if read.host is host]
        if not reads:
            return False
        time_s = SILENCE_S + sum(read.allowed_s for read in reads)
        return now - min(read.moved_at for read in reads) >= time_s
