"""What makes checksums of blocks: the contract, whoever has the memory that they are in."""

from collections.abc import Sequence
from typing import Protocol

from kv_transfer.blocks.mapping import BlockMapping
from kv_transfer.checking import CheckLevel


class Checksums(Protocol):
    """Makes checksums of what is in a node's KV memory, wherever that is."""

    @property
    def block_bytes(self) -> int:
        """How much is looked at for one block, by the slowest who looks."""

    def of(self, blocks: Sequence[int], level: CheckLevel) -> list[int]:
        """One checksum for each; IndexError for a block that there is not."""

    def of_pieces(
        self, cut: BlockMapping, slots: Sequence[Sequence[int]], level: CheckLevel
    ) -> list[int]:
        """One for each block of another layout, whose pieces are in these slots of ours."""
