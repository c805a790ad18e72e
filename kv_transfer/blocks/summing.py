"""What makes checksums of blocks: the contract, whoever has the memory that they are in."""

from collections.abc import Sequence
from typing import Protocol

from kv_transfer.blocks.cutting import Cut
from kv_transfer.checking import Level


class Sums(Protocol):
    """Makes checksums of what is in a node's KV memory, wherever that is."""

    @property
    def block_bytes(self) -> int:
        """How much is looked at for one block, by the slowest who looks."""

    def of(self, blocks: Sequence[int], level: Level) -> list[int]:
        """One checksum for each; IndexError for a block that there is not."""

    def of_pieces(self, cut: Cut, slots: Sequence[Sequence[int]], level: Level) -> list[int]:
        """One for each block of another layout, whose pieces are in these slots of ours."""
