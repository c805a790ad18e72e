"""Which bytes a checksum covers, where source and sink have different layouts. Pure.

Both sides checksum a slot (mapping.py) in the layout of the side with more ranks, or of the
source where both have as many. Each rank's part of a slot gets a checksum, and those are
combined into one. So a part is always within one rank's memory, on both sides: ranks on
devices cannot read each other's.

    to fewer ranks   source | 0 | 1 |   each rank checksums its own bytes
                     sink   |   0   |   puts each source rank's part together, checksums it
    to more ranks    source |   0   |   puts each sink rank's part together, checksums it
                     sink   | 0 | 1 |   each rank checksums its own bytes

A BlockMapping says how a side puts the parts together: "theirs" are the parts, "ours" its own
blocks.

Where a state is read in pieces (state_mapping.py), its slots have checksums of their own, made
in the same way. Its blocks have those of KV as well, as long as nobody knows what is in them;
these are not compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import msgspec

from kv_transfer.blocks.mapping import WHOLE_BLOCKS, BlockMapping, MappedPiece, map_blocks
from kv_transfer.blocks.state_mapping import map_states
from kv_transfer.layout import KvLayout


@dataclass(frozen=True, slots=True)
class SequenceChecksums:
    """What a source's checksums cover, of each block, and, if there is a mapping of `state`,
    of each slot of the last `state_blocks` of a sequence.
    """

    kv: BlockMapping = WHOLE_BLOCKS
    state: BlockMapping | None = None
    state_blocks: int = 0


WHOLE_SEQUENCE = SequenceChecksums()


def source_checksums(theirs: KvLayout, ours: KvLayout) -> SequenceChecksums:
    """What the checksums of a source with layout `theirs` cover, for a sink with `ours`."""
    kv, way = source_checksum_mapping(theirs, ours), map_states(theirs, ours)
    if way is None or not way.is_compared:
        return SequenceChecksums(kv)
    return SequenceChecksums(kv, _of_states(way, at_source=True), theirs.state_blocks)


@lru_cache(maxsize=64)
def source_checksum_mapping(theirs: KvLayout, ours: KvLayout) -> BlockMapping:
    """How a source with layout `theirs` makes checksums for a sink with layout `ours`.

    `our_slots` checksums for each source block; WHOLE_BLOCKS: one of the block as it is.
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
    """How a sink reading by `way` makes checksums; WHOLE_BLOCKS: of blocks as they are."""
    if way.our_step_bytes is not None:
        return _of_states(way, at_source=False)
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
    """For each part, in order: the rank of ours that has it, and the mapping of its pieces."""
    parts = dict[int, list[MappedPiece]]()  # a peer may claim many ranks: each piece once
    for piece in seen.pieces:
        parts.setdefault(piece.their_rank, []).append(piece)
    found = list[tuple[int, BlockMapping]]()
    for _, pieces in sorted(parts.items()):
        (rank,) = {piece.our_rank for piece in pieces}
        alone = tuple(replace(piece, our_rank=0, their_rank=0) for piece in pieces)
        found.append((rank, replace(seen, pieces=alone)))
    return found


def _of_states(way: BlockMapping, *, at_source: bool) -> BlockMapping:
    """How one side makes checksums of a state's slots."""
    pieces = list[MappedPiece]()
    for one in way.pieces:
        there, here = (one.their_rank, one.their_offset), (one.our_rank, one.our_offset)
        part, own = here if way.spreads else there, there if at_source else here
        pieces.append(MappedPiece(part[0], own[0], part[1], own[1], one.size))
    slots = way.their_slots if at_source else way.our_slots
    step = way.step_bytes if at_source else way.our_step
    return BlockMapping(1, slots, step, way.slot_bytes, tuple(pieces))


def _of_slots(way: BlockMapping, slots: int, pieces: tuple[MappedPiece, ...]) -> BlockMapping:
    return BlockMapping(1, slots, way.step_bytes, way.slot_bytes, pieces)
