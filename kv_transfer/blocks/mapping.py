"""How blocks of one layout are read into blocks of another. Pure arithmetic, in slots.

A slot is as many tokens as the smaller of the two sides' blocks has. Where the sides are alike,
slots are blocks and lie in one stretch. Where they are not, what the two have in common
of a slot is in pieces: one for each layer, part and head, joined where both sides let them be.

    each head of a block of 32   |--- slot 0 ---|--- slot 1 ---|
    and of two blocks of 16      |--- slot 0 ---|  |--- slot 0 ---|
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from kv_transfer.blocks.runs import BlockRuns, pair_runs
from kv_transfer.layout import KvLayout

MOST_PIECES = 16_384  # at a time: to name them takes the transfer thread a while


@dataclass(frozen=True, slots=True)
class MappedPiece:
    """`size` bytes of slot 0 of a block, in a rank's region on either side."""

    their_rank: int
    our_rank: int
    their_offset: int
    our_offset: int
    size: int

    def precedes(self, other: "MappedPiece") -> bool:
        """Whether the other one begins where this one ends, on both sides."""
        return (
            (self.their_rank, self.our_rank) == (other.their_rank, other.our_rank)
            and self.their_offset + self.size == other.their_offset
            and self.our_offset + self.size == other.our_offset
        )


@dataclass(frozen=True, slots=True)
class BlockMapping:
    """What all reads from one layout into another have in common.

    Slots of a block lie `step_bytes` apart on both sides, and `slot_bytes` are read of each.
    Without `pieces` a slot is a whole block of every region. `covers`: all bytes of their
    blocks are read, each once. `spreads`: we have more ranks than they. Neither where a rank
    of either side has to do with several of the other's.
    """

    their_slots: int = 1
    our_slots: int = 1
    step_bytes: int = 0
    slot_bytes: int = 0
    pieces: tuple[MappedPiece, ...] = ()
    covers: bool = True
    spreads: bool = False

    @property
    def is_compared(self) -> bool:
        """Whether what is read by it has checksums: not if copies lie beside it, which its
        source sums as well, or if nobody has all of what is to be summed.
        """
        return self.covers or self.spreads

    @property
    def by_slot(self) -> bool:
        """Whether neighbouring pieces of one slot may lie closer than those of the next one."""
        return self.their_slots == self.our_slots

    @property
    def most_slots(self) -> int | None:
        """How many to read at a time, whole blocks of theirs; None: any number."""
        if not self.pieces:
            return None
        return max(1, MOST_PIECES // len(self.pieces) // self.their_slots) * self.their_slots

    def agree(self, offered: int, reserved: int, *, complete: bool) -> bool:
        """Whether so many blocks of theirs go into ours; `complete`: and fill them.

        A prompt need not fill the last block on either side.
        """
        theirs, ours = offered * self.their_slots, reserved * self.our_slots
        if theirs - self.their_slots >= ours:
            return False
        return not complete or theirs > ours - self.our_slots

    def runs(self, theirs: Sequence[int], into: Sequence[int], start: int) -> BlockRuns:
        """From slot `start` on, as long as both have blocks, but `most_slots`: neighbours
        together."""
        end = self.slots(len(theirs), len(into))
        if (most := self.most_slots) is not None:
            end = min(end, start - start % self.their_slots + most)
        there = _slots(theirs, start, end, self.their_slots)
        return pair_runs(there, _slots(into, start, end, self.our_slots))

    def slots(self, offered: int, reserved: int) -> int:
        """How many slots there are in so many blocks of theirs and of ours."""
        return min(offered * self.their_slots, reserved * self.our_slots)


WHOLE_BLOCKS = BlockMapping()


def _slots(blocks: Sequence[int], start: int, end: int, per_block: int) -> Sequence[int]:
    if per_block == 1:
        return blocks[start : max(start, end)]
    places = (divmod(index, per_block) for index in range(start, end))
    return [blocks[block] * per_block + within for block, within in places]


@lru_cache(maxsize=64)
def map_blocks(theirs: KvLayout, ours: KvLayout) -> BlockMapping:
    """For two layouts of which `can_pull` says that they fit."""
    alike = (theirs.block_size, theirs.tensor_parallel_size) == (
        ours.block_size,
        ours.tensor_parallel_size,
    )
    if alike:
        return BlockMapping(slot_bytes=sum(ours.block_bytes))
    tokens = min(theirs.block_size, ours.block_size)
    step = tokens * ours.row_bytes
    pieces = tuple(_joined(_pieces(theirs, ours, step)))
    size = sum(piece.size for piece in pieces)
    slots = theirs.block_size // tokens
    nested = _are_nested(pieces)
    covers = nested and size * slots == sum(theirs.block_bytes) and _are_apart(pieces)
    spreads = nested and ours.tensor_parallel_size > theirs.tensor_parallel_size
    return BlockMapping(slots, ours.block_size // tokens, step, size, pieces, covers, spreads)


def _pieces(theirs: KvLayout, ours: KvLayout, size: int) -> Iterator[MappedPiece]:
    """One for each layer, part and head of each of our ranks."""
    for rank in range(ours.tensor_parallel_size):
        heads = ours.heads_of(rank)
        for plane in range(ours.layers * ours.parts):
            for head in heads:
                owner = _owner(theirs, head, rank)
                there = _offset(theirs, plane, theirs.heads_of(owner), head)
                yield MappedPiece(owner, rank, there, _offset(ours, plane, heads, head), size)


def _are_nested(pieces: Sequence[MappedPiece]) -> bool:
    """Whether each rank of one side has to do with one rank of the other only."""
    pairs = {(piece.their_rank, piece.our_rank) for piece in pieces}
    return len(pairs) in (len({one for one, _ in pairs}), len({one for _, one in pairs}))


def _are_apart(pieces: Sequence[MappedPiece]) -> bool:
    """Whether nothing of theirs is read twice."""
    return len({(piece.their_rank, piece.their_offset) for piece in pieces}) == len(pieces)


def _owner(theirs: KvLayout, head: int, reader: int) -> int:
    """Whose copy of a head to read: of several each reader takes another."""
    ranks, heads = theirs.tensor_parallel_size, theirs.kv_heads
    if ranks <= heads:
        return head // (heads // ranks)
    copies = ranks // heads
    return head * copies + reader % copies


def _offset(layout: KvLayout, plane: int, heads: range, head: int) -> int:
    row = plane * len(heads) + head - heads.start
    return row * layout.block_size * layout.row_bytes


def _joined(pieces: Iterator[MappedPiece]) -> Iterator[MappedPiece]:
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
