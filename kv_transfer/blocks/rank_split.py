"""Splits one read by ranks: each of ours reads from each of theirs what both have. Pure.

Each rank of a node has its own agent, which reaches only that rank's region. So a read between
two nodes becomes one read for each pair of ranks that have something in common, with one region
on each side.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from kv_transfer.blocks.mapping import WHOLE_BLOCKS, BlockMapping, MappedPiece

RankPair = tuple[int, int]
"""Our rank, their rank."""


@lru_cache(maxsize=64)
def split_by_rank(cut: BlockMapping, ranks: int) -> Mapping[RankPair, BlockMapping]:
    """The mapping of each pair of ranks; we have `ranks`, each with one region.

    If both sides have the same layout, only equal ranks are paired.
    """
    if not cut.pieces:
        return {(rank, rank): WHOLE_BLOCKS for rank in range(ranks)}
    found = dict[RankPair, list[MappedPiece]]()
    for piece in cut.pieces:
        alone = replace(piece, our_rank=0, their_rank=0)
        found.setdefault((piece.our_rank, piece.their_rank), []).append(alone)
    return {
        pair: replace(cut, pieces=tuple(pieces), slot_bytes=sum(one.size for one in pieces))
        for pair, pieces in found.items()
    }
