"""Checksums of blocks whose regions are on several ranks' devices; each rank sums its own.

A block's checksum combines those of its regions, so each rank computes its own, and no bytes
leave its device. If the other side has a different number of ranks, each part that is summed is
within one of our ranks (blocks/checksum_mapping.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kv_transfer.blocks.checksum_mapping import checksum_parts
from kv_transfer.blocks.mapping import BlockMapping
from kv_transfer.checking import CheckLevel
from kv_transfer.integrity.checksums import BlockChecksums, combine_regions


class RemoteChecksums(Protocol):
    """Another rank of ours, which computes checksums of its own region."""

    def request_checksums(
        self, cut: BlockMapping | None, slots: Sequence[Sequence[int]], level: CheckLevel
    ) -> None:
        """Request checksums of images of a cut, by their slots, or, without a cut, of blocks.

        Does not wait.
        """

    def receive_checksums(self) -> list[int]:
        """The answer to the oldest request; raises RankStuck if it does not come."""


@dataclass(frozen=True, slots=True)
class RankChecksums:
    """See Checksums; `ours` covers the first rank's region."""

    ours: BlockChecksums
    others: Sequence[RemoteChecksums]

    @property
    def blocks_at_once(self) -> int:
        """See Checksums; the ranks work in parallel."""
        return self.ours.blocks_at_once

    def of(self, blocks: Sequence[int], level: CheckLevel) -> list[int]:
        """See Checksums."""
        if not blocks:
            return []
        for other in self.others:
            other.request_checksums(None, [(block,) for block in blocks], level)
        ours = self.ours.of(blocks, level)
        return combine_regions([ours, *(other.receive_checksums() for other in self.others)])

    def of_pieces(
        self, cut: BlockMapping, slots: Sequence[Sequence[int]], level: CheckLevel
    ) -> list[int]:
        """See Checksums."""
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
