"""A mover whose reads end only after the bytes that arrived were compared with their checksums.

The source computes a block's checksum when the block is final, and sends it with the message
that announces the block. Here it is computed again over the bytes that arrived: some blocks at
a time, because the same thread keeps leases alive.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice

from kv_transfer.blocks.checksum_mapping import sink_checksum_mapping
from kv_transfer.blocks.checksums import Checksums
from kv_transfer.blocks.mapping import WHOLE_BLOCKS, BlockMapping
from kv_transfer.blocks.runs import BlockRuns, expand_runs
from kv_transfer.checking import ExpectedChecksum
from kv_transfer.errors import CorruptKv
from kv_transfer.ledger.open_offers import ChecksumOrder
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.movers.mover import MoverWrapper, ReadEnd

BlockOrSlot = int | tuple[int]
"""A block of ours, or a slot (mapping.py)."""


@dataclass(slots=True)
class _Checking:
    """The blocks of one read that are not checked yet, and their expected checksums."""

    order: ReadOrder
    left: Iterator[tuple[BlockOrSlot, ExpectedChecksum]]


@dataclass(slots=True)
class CheckedMover(MoverWrapper):
    """Wraps a mover and checks our memory, also for reads that ended before a disconnect."""

    sums: Checksums
    _orders: dict[int, ReadOrder] = field(default_factory=dict)
    _checking: deque[_Checking] = field(default_factory=deque)

    @property
    def pending(self) -> bool:
        """Also true while there are bytes to check."""
        return bool(self._checking) or self.mover.pending

    def read(self, order: ReadOrder) -> None:
        """Begin a read; if it has no checksums, it is not checked."""
        if order.checks:
            self._orders[order.read_id] = order
        self.mover.read(order)

    def poll(self) -> Sequence[ReadEnd]:
        """Reads that ended and were checked."""
        ended = list[ReadEnd]()
        for read_id, error in self.mover.poll():
            order = self._orders.pop(read_id, None)
            if order is None or error is not None:
                ended.append((read_id, error))
            else:
                self._checking.append(_Checking(order, expected_checksums(order)))
        return [*ended, *self._check()]

    def _check(self) -> Iterator[ReadEnd]:
        left = self.sums.blocks_at_once
        while self._checking and left > 0:
            one = self._checking[0]
            some = list(islice(one.left, left))
            left -= len(some)
            wrong = first_mismatch(self.sums, some, one.order.cut)
            if wrong is not None or left > 0:  # the read is corrupt, or this was its last part
                self._checking.popleft()
                yield one.order.read_id, wrong


def first_mismatch(
    sums: Checksums,
    told: Iterable[tuple[BlockOrSlot, ExpectedChecksum]],
    cut: BlockMapping = WHOLE_BLOCKS,
) -> CorruptKv | None:
    """Compare the bytes that arrived with the source's checksums."""
    seen = sink_checksum_mapping(cut)
    for level, some in groupby(told, key=lambda one: one[1][0]):
        blocks, right = zip(*((block, sum_) for block, (_, sum_) in some), strict=True)
        found = sums.of_pieces(seen, blocks, level) if seen.pieces else sums.of(blocks, level)
        if found == list(right):
            continue
        for block, here, there in zip(blocks, found, right, strict=True):
            if here != there:
                place = f"slot {block[0]}" if isinstance(block, tuple) else f"block {block}"
                return CorruptKv(f"{place} is {here:x} here, and {there:x} at its source")
    return None


def make_checksums(sums: Checksums, order: ChecksumOrder) -> list[int]:
    """Checksums of blocks on offer, for their sinks; one for each slot."""
    if not order.seen.pieces:
        return sums.of(order.blocks, order.level)
    count = order.seen.our_slots
    slots = [(block * count + slot,) for block in order.blocks for slot in range(count)]
    return sums.of_pieces(order.seen, slots, order.level)


def expected_checksums(order: ReadOrder) -> Iterator[tuple[BlockOrSlot, ExpectedChecksum]]:
    """The blocks, or slots, of ours that the read fills, each with its checksum."""
    if not order.checks:
        return iter(())
    runs = BlockRuns.of(order.runs)
    ours = expand_runs(runs.ours, runs.counts).tolist()
    places = [(slot,) for slot in ours] if sink_checksum_mapping(order.cut).pieces else ours
    return zip(places, order.checks, strict=True)
