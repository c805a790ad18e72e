"""The contract of checksums of blocks, wherever their memory is."""

from collections.abc import Sequence
from typing import Protocol

from kv_transfer.blocks.mapping import BlockMapping
from kv_transfer.checking import CheckLevel


class Checksums(Protocol):
    """Computes checksums of blocks in a node's KV memory, wherever that memory is."""

    @property
    def blocks_at_once(self) -> int:
        """Blocks to ask for at a time, at least one: milliseconds of work, because the thread
        that asks also keeps leases alive.
        """

    def of(self, blocks: Sequence[int], level: CheckLevel) -> list[int]:
        """One checksum for each block; IndexError for a block that does not exist."""

    def of_pieces(
        self, cut: BlockMapping, slots: Sequence[Sequence[int]], level: CheckLevel
    ) -> list[int]:
        """One checksum for each block of another layout, whose pieces are in these slots."""
