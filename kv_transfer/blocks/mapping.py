"""How blocks of one layout are read into blocks of another. Pure arithmetic, in slots.

A slot holds as many tokens as divide the blocks of both sides: nearly always a block of the
side with the smaller ones. If the layouts are equal, slots are blocks and each is one
contiguous range. Otherwise what the two sides have in
common of a slot consists of pieces: one for each layer, part and head, merged where they are
contiguous on both sides.

    each head of a block of 32   |--- slot 0 ---|--- slot 1 ---|
    and of two blocks of 16      |--- slot 0 ---|  |--- slot 0 ---|
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from math import gcd
from typing import NamedTuple

from kv_transfer.blocks.runs import BlockRuns, pair_runs
from kv_transfer.layout import KvLayout

MOST_PIECES = 16_384  # at a time: listing more would keep the transfer thread busy for too long


@dataclass(frozen=True, slots=True)
class MappedPiece:
    """`size` bytes of a block's slot 0, in the region of one rank on each side."""

    their_rank: int
    our_rank: int
    their_offset: int
    our_offset: int
    size: int

    def precedes(self, other: "MappedPiece") -> bool:
        """Whether the other piece begins where this one ends, on both sides."""
        return (
            (self.their_rank, self.our_rank) == (other.their_rank, other.our_rank)
            and self.their_offset + self.size == other.their_offset
            and self.our_offset + self.size == other.our_offset
        )


@dataclass(frozen=True, slots=True)
class BlockMapping:
    """What all reads from one layout into another have in common.

    Slots of a block are `step_bytes` apart on both sides, and `slot_bytes` of each are read.
    With `our_step_bytes` they are that far apart on our side, and no slot reaches into the next
    (state_mapping.py). Without `pieces`, a slot is a whole block of every region. `covers`: all
    bytes of their blocks are read, each once. `spreads`: we have more ranks than they do. Both
    are false if on both sides there are ranks that exchange bytes with several ranks of the
    other side.
    """

    their_slots: int = 1
    our_slots: int = 1
    step_bytes: int = 0
    slot_bytes: int = 0
    pieces: tuple[MappedPiece, ...] = ()
    covers: bool = True
    spreads: bool = False
    our_step_bytes: int | None = None

    @property
    def our_step(self) -> int:
        """How far apart the slots of our blocks are, in bytes."""
        return self.step_bytes if self.our_step_bytes is None else self.our_step_bytes

    @property
    def is_compared(self) -> bool:
        """Whether reads by this mapping are compared with checksums.

        They are not if the source's checksum would cover bytes that are not read (copies of
        heads), or if no rank has all the bytes of a checksum.
        """
        return self.covers or self.spreads

    @property
    def by_slot(self) -> bool:
        """Whether neighbouring pieces of one slot may be closer than those of the next slot."""
        return self.their_slots == self.our_slots

    @property
    def most_slots(self) -> int | None:
        """How many slots to read at a time, in whole blocks of theirs; None: any number."""
        if not self.pieces:
            return None
        return max(1, MOST_PIECES // len(self.pieces) // self.their_slots) * self.their_slots

    def agree(self, offered: int, reserved: int, *, complete: bool) -> bool:
        """Whether `offered` blocks fit into `reserved` ones; `complete`: and fill them.

        A prompt need not fill the last block on either side.
        """
        theirs, ours = offered * self.their_slots, reserved * self.our_slots
        if theirs - self.their_slots >= ours:
            return False
        return not complete or theirs > ours - self.our_slots

    def runs(
        self, theirs: Sequence[int], into: Sequence[int], start: int, end: int | None = None
    ) -> BlockRuns:
        """Runs from slot `start` on, at most `most_slots`, while both sides have blocks, and
        before slot `end`, if there is one.
        """
        both = self.slots(len(theirs), len(into))
        end = both if end is None else min(both, end)
        if (most := self.most_slots) is not None:
            end = min(end, start - start % self.their_slots + most)
        there = _slots(theirs, start, end, self.their_slots)
        return pair_runs(there, _slots(into, start, end, self.our_slots))

    def slots(self, offered: int, reserved: int) -> int:
        """The number of slots that both sides have."""
        return min(offered * self.their_slots, reserved * self.our_slots)


WHOLE_BLOCKS = BlockMapping()


def _slots(blocks: Sequence[int], start: int, end: int, per_block: int) -> Sequence[int]:
    if per_block == 1:
        return blocks[start:end]
    places = (divmod(index, per_block) for index in range(start, end))
    return [blocks[block] * per_block + within for block, within in places]


@lru_cache(maxsize=64)
def map_blocks(theirs: KvLayout, ours: KvLayout) -> BlockMapping:
    """The mapping for two layouts that `can_pull` accepts."""
    alike = (theirs.block_size, theirs.tensor_parallel_size) == (
        ours.block_size,
        ours.tensor_parallel_size,
    )
    if alike:
        return BlockMapping(slot_bytes=sum(ours.block_bytes))
    tokens = gcd(theirs.block_size, ours.block_size)
    step = tokens * ours.row_bytes
    pieces = tuple(joined(_pieces(theirs, ours, step)))
    size = sum(piece.size for piece in pieces)
    slots = theirs.block_size // tokens
    nested = are_nested(pieces)
    covers = nested and size * slots == sum(theirs.block_bytes) and _are_apart(pieces)
    spreads = nested and ours.tensor_parallel_size > theirs.tensor_parallel_size
    return BlockMapping(slots, ours.block_size // tokens, step, size, pieces, covers, spreads)


class _Rows(NamedTuple):
    """Where the rows of one kind of layers lie in a block of a rank."""

    heads: range
    start: int
    row: int  # bytes of a block's tokens, for one head

    def at(self, plane: int, head: int) -> int:
        """Where a head's rows begin, in one part of one layer."""
        return self.start + (plane * len(self.heads) + head - self.heads.start) * self.row


def _pieces(theirs: KvLayout, ours: KvLayout, size: int) -> Iterator[MappedPiece]:
    """One piece for each layer, part and head of each of our ranks; of `size` bytes, or of
    more where heads are wider.
    """
    there, here = _rows_of(theirs), _rows_of(ours)
    for rank, ours_by_kind in enumerate(here):
        for which, (kind, rows) in enumerate(zip(ours.kinds, ours_by_kind, strict=True)):
            each = size * kind.head_dim // ours.head_dim
            for plane in range(kind.layers * ours.parts):
                for head in rows.heads:
                    owner = _owner(theirs.tensor_parallel_size, kind.kv_heads, head, rank)
                    begin = there[owner][which].at(plane, head)
                    yield MappedPiece(owner, rank, begin, rows.at(plane, head), each)


def _rows_of(layout: KvLayout) -> Sequence[Sequence[_Rows]]:
    """Of each rank, those of each kind of layers."""
    ranks, number = layout.tensor_parallel_size, layout.block_size * layout.row_bytes
    found = []
    for rank in range(ranks):
        starts = accumulate(layout.kind_bytes(rank), initial=0)
        found.append(
            [
                _Rows(kind.heads_of(rank, ranks), at, number * kind.head_dim // layout.head_dim)
                for kind, at in zip(layout.kinds, starts, strict=False)
            ]
        )
    return found


def are_nested(pieces: Sequence[MappedPiece]) -> bool:
    """Whether every rank of one side exchanges bytes with only one rank of the other."""
    pairs = {(piece.their_rank, piece.our_rank) for piece in pieces}
    return len(pairs) in (len({one for one, _ in pairs}), len({one for _, one in pairs}))


def _are_apart(pieces: Sequence[MappedPiece]) -> bool:
    """Whether no byte of theirs is read twice."""
    return len({(piece.their_rank, piece.their_offset) for piece in pieces}) == len(pieces)


def _owner(ranks: int, heads: int, head: int, reader: int) -> int:
    """The rank from which to read a head; if several have it, readers are spread over them."""
    if ranks <= heads:
        return head // (heads // ranks)
    copies = ranks // heads
    return head * copies + reader % copies


def joined(pieces: Iterator[MappedPiece]) -> Iterator[MappedPiece]:
    """The same bytes, with pieces merged that are neighbours on both sides."""
    last: MappedPiece | None = None
    for piece in pieces:
        if last and last.precedes(piece):
            last = replace(last, size=last.size + piece.size)
            continue
        if last:
            yield last
        last = piece
    if last:
        yield last
