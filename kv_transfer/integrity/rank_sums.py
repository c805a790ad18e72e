"""Checksums of blocks whose regions are on several ranks' devices, each looked at by its rank.

A block's checksum is made of those of its regions, so each rank makes its own, and no bytes
leave its device. What came from another number of ranks is summed by whoever has all of one
source rank's heads; where these are spread over several of ours, nobody can.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

from kv_transfer.blocks.cutting import Cut
from kv_transfer.checking import Level
from kv_transfer.integrity.checksums import BlockSums, together


class RemoteSums(Protocol):
    """Another rank of ours, which sums what is in its own region."""

    def ask_sums(self, cut: Cut | None, slots: Sequence[Sequence[int]], level: Level) -> None:
        """Of images of a cut, by their slots; without one, of blocks. Nobody waits."""

    def hear_sums(self) -> list[int]:
        """What was asked for first; raises RankStuck where it does not come."""


@dataclass(frozen=True, slots=True)
class RankSums:
    """See Sums; `ours` is of the first rank's region."""

    ours: BlockSums
    others: Sequence[RemoteSums]

    @property
    def block_bytes(self) -> int:
        """Of one block, on one rank: they are looked at side by side."""
        return self.ours.block_bytes

    def sees(self, cut: Cut) -> bool:
        """Whether each of their regions is on one of our ranks."""
        return not cut.pieces or _parts(cut) is not None

    def of(self, blocks: Sequence[int], level: Level) -> list[int]:
        """See Sums."""
        if not blocks:
            return []
        for other in self.others:
            other.ask_sums(None, [(block,) for block in blocks], level)
        ours = self.ours.of(blocks, level)
        return together([ours, *(other.hear_sums() for other in self.others)])

    def of_pieces(self, cut: Cut, slots: Sequence[Sequence[int]], level: Level) -> list[int]:
        """See Sums; of a cut that it `sees`."""
        parts = _parts(cut)
        assert parts is not None, "asked before"
        for rank, part in parts:
            if rank > 0:
                self.others[rank - 1].ask_sums(part, slots, level)
        return together(
            [
                self.others[rank - 1].hear_sums()
                if rank > 0
                else self.ours.of_pieces(part, slots, level)
                for rank, part in parts
            ]
        )


@lru_cache(maxsize=64)
def _parts(cut: Cut) -> Sequence[tuple[int, Cut]] | None:
    """For each of their regions, in order, which rank of ours has it, and by which pieces."""
    found = list[tuple[int, Cut]]()
    for theirs in range(1 + max(piece.their_rank for piece in cut.pieces)):
        pieces = [piece for piece in cut.pieces if piece.their_rank == theirs]
        ranks = {piece.our_rank for piece in pieces}
        if len(ranks) != 1:
            return None
        alone = tuple(replace(piece, our_rank=0, their_rank=0) for piece in pieces)
        found.append((ranks.pop(), replace(cut, pieces=alone)))
    return found
