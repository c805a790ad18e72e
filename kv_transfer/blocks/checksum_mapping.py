"""What a checksum is of, and how either side comes to it. Pure.

A slot (mapping.py) is summed as it lies at the side with more ranks, at the source where both
have as many: one checksum for each rank's part of it, and one of these. So whatever is summed
is within one rank's memory on both sides, and on devices no rank sees another's.

    to fewer ranks   source | 0 | 1 |   sums what its ranks have
                     sink   |   0   |   puts together what each rank of the source has
    to more ranks    source |   0   |   puts together what each rank of the sink will have
                     sink   | 0 | 1 |   sums what its ranks have

How a side puts parts of slots together is a cut as well, in which they are the blocks that are
read.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import msgspec

from kv_transfer.blocks.mapping import WHOLE_BLOCKS, BlockMapping, MappedPiece, map_blocks
from kv_transfer.layout import KvLayout


@lru_cache(maxsize=64)
def source_checksum_mapping(theirs: KvLayout, ours: KvLayout) -> BlockMapping:
    """What a source of the layout `theirs` sums for a sink of `ours`: of each of its blocks so
    many slots (`our_slots`); WHOLE_BLOCKS: its blocks as they are.
    """
    way = map_blocks(theirs, ours)
    if way.spreads:
        count = way.our_slots
        turned = (
            replace(
                one,
                their_rank=one.our_rank,
                our_rank=one.their_rank,
                their_offset=one.our_offset // count,
                our_offset=one.their_offset,
            )
            for one in way.pieces
        )
        return _of_slots(way, way.their_slots, tuple(turned))
    if way.their_slots == 1:
        return WHOLE_BLOCKS
    small = msgspec.structs.replace(
        theirs,
        block_size=theirs.block_size // way.their_slots,
        block_bytes=tuple(size // way.their_slots for size in theirs.block_bytes),
    )
    return map_blocks(small, theirs)


@lru_cache(maxsize=64)
def sink_checksum_mapping(way: BlockMapping) -> BlockMapping:
    """What a sink reading by this mapping checksums; WHOLE_BLOCKS: its blocks as they are."""
    if way.spreads:
        if way.our_slots == 1:
            return WHOLE_BLOCKS
        count = way.our_slots
        own = (
            replace(one, their_rank=one.our_rank, their_offset=one.our_offset // count)
            for one in way.pieces
        )
        return _of_slots(way, count, tuple(own))
    count = way.their_slots
    theirs = (replace(one, their_offset=one.their_offset // count) for one in way.pieces)
    return _of_slots(way, way.our_slots, tuple(theirs))


@lru_cache(maxsize=64)
def checksum_parts(seen: BlockMapping) -> Sequence[tuple[int, BlockMapping]]:
    """Of each part that is summed, in order, which rank of ours has it, by which pieces."""
    found = list[tuple[int, BlockMapping]]()
    for part in range(1 + max(piece.their_rank for piece in seen.pieces)):
        pieces = [piece for piece in seen.pieces if piece.their_rank == part]
        (rank,) = {piece.our_rank for piece in pieces}
        alone = tuple(replace(piece, our_rank=0, their_rank=0) for piece in pieces)
        found.append((rank, replace(seen, pieces=alone)))
    return found


def _of_slots(way: BlockMapping, slots: int, pieces: tuple[MappedPiece, ...]) -> BlockMapping:
    return BlockMapping(1, slots, way.step_bytes, way.slot_bytes, pieces)
