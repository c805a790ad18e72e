"""Checksums of blocks whose regions are on several ranks' devices, each looked at by its rank.

A block's checksum is made of those of its regions, so each rank makes its own, and no bytes
leave its device. Where the other side has another number of ranks, each of the parts that are
summed is within one of ours (blocks/checksum_mapping.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kv_transfer.blocks.checksum_mapping import checksum_parts
from kv_transfer.blocks.mapping import BlockMapping
from kv_transfer.checking import CheckLevel
from kv_transfer.integrity.checksums import BlockChecksums, combine_regions


class RemoteChecksums(Protocol):
    """Another rank of ours, which sums what is in its own region."""

    def request_checksums(
        self, cut: BlockMapping | None, slots: Sequence[Sequence[int]], level: CheckLevel
    ) -> None:
        """Of images of a cut, by their slots; without one, of blocks. Nobody waits."""

    def receive_checksums(self) -> list[int]:
        """What was asked for first; raises RankStuck where it does not come."""


@dataclass(frozen=True, slots=True)
class RankChecksums:
    """See Sums; `ours` is of the first rank's region."""

    ours: BlockChecksums
    others: Sequence[RemoteChecksums]

    @property
    def block_bytes(self) -> int:
        """Of one block, on one rank: they are looked at side by side."""
        return self.ours.block_bytes

    def of(self, blocks: Sequence[int], level: CheckLevel) -> list[int]:
        """See Sums."""
        if not blocks:
            return []
        for other in self.others:
            other.request_checksums(None, [(block,) for block in blocks], level)
        ours = self.ours.of(blocks, level)
        return combine_regions([ours, *(other.receive_checksums() for other in self.others)])

    def of_pieces(
        self, cut: BlockMapping, slots: Sequence[Sequence[int]], level: CheckLevel
    ) -> list[int]:
        """See Sums."""
        parts = checksum_parts(cut)
        for rank, part in parts:
            if rank > 0:
                self.others[rank - 1].request_checksums(part, slots, level)
        return combine_regions(
            [
                self.others[rank - 1].receive_checksums()
                if rank > 0
                else self.ours.of_pieces(part, slots, level)
                for rank, part in parts
            ]
        )
