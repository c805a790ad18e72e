"""One read as those of ranks: each of ours reads, from each of theirs, what both have. Pure.

Ranks of one node have an agent each, which reaches that rank's region and no other. So a read
between two nodes is one for each pair of ranks that have something in common, of one region on
either side.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from kv_transfer.blocks.mapping import WHOLE_BLOCKS, BlockMapping, MappedPiece

RankPair = tuple[int, int]
"""Our rank, their rank."""


@lru_cache(maxsize=64)
def split_by_rank(
    cut: BlockMapping, ranks: int, *, apart: bool
) -> Mapping[RankPair, BlockMapping]:
    """By pairs of ranks; `ranks` of ours, each with one region.

    Their ranks are `apart`, or else one agent reaches all of their regions, and is rank 0.
    Sides that are alike have equal pairs only.
    """
    if not cut.pieces:
        return {(rank, rank): WHOLE_BLOCKS for rank in range(ranks)}
    found = dict[RankPair, list[MappedPiece]]()
    for piece in cut.pieces:
        theirs = piece.their_rank if apart else 0
        alone = replace(piece, our_rank=0, their_rank=piece.their_rank - theirs)
        found.setdefault((piece.our_rank, theirs), []).append(alone)
    return {
        pair: replace(cut, pieces=tuple(pieces), slot_bytes=sum(one.size for one in pieces))
        for pair, pieces in found.items()
    }
