"""The memory that holds all KV blocks: one flat allocation, block-major.

    [block, layer, k | v, kv_head, token, head_dim]

A block is one contiguous stretch for all layers, so a hand-over is a few large copies; a
head's part of it is contiguous too, so that a reader with other heads can pick its own. As
rows of `head_dim`, the memory is written token by token; as rows of `token * head_dim`, it
is gathered head by head straight into the [sequence, head, position, dim] that attention
wants, with no second copy.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.api import KvRegion
from engine.models.config import ModelConfig


class KvMemory:
    """The tensor, its views, and where a token or a block lies in them.

    `token_rows` is [blocks * layers * 2 * heads * block_size, head_dim], `block_rows` is
    [blocks * layers * 2 * heads, block_size * head_dim].
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_size, self.kv_heads = block_size, config.num_kv_heads
        self.head_dim, self.num_blocks = config.head_dim, num_blocks
        self.rows_per_block = config.num_layers * 2 * self.kv_heads
        rows = num_blocks * self.rows_per_block
        self.block_rows = torch.zeros(
            (rows, block_size * self.head_dim), dtype=dtype, device=device
        )
        self.token_rows = self.block_rows.view(rows * block_size, self.head_dim)

    @property
    def regions(self) -> Sequence[KvRegion]:
        """What a connector is told."""
        tensor, size = self.block_rows, self.block_rows.element_size()
        block_bytes = self.rows_per_block * self.block_size * self.head_dim * size
        return [KvRegion(tensor.data_ptr(), block_bytes, self.num_blocks, str(tensor.device))]

    def clear(self, blocks: Sequence[int]) -> None:
        """Forget what is in some blocks."""
        if blocks:
            ids = torch.tensor(blocks, device=self.block_rows.device)
            self.block_rows.view(self.num_blocks, -1).index_fill_(0, ids, 0)

    def rows(self, blocks: Tensor) -> Tensor:
        """Rows of `block_rows` that are layer 0's: [2, .., heads, n] for blocks [.., n]."""
        heads = torch.arange(2 * self.kv_heads, device=blocks.device)
        heads = heads.view(2, *[1] * (blocks.dim() - 1), self.kv_heads, 1)
        return (blocks * self.rows_per_block).unsqueeze(-2) + heads

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [tokens, heads, head_dim] of one layer at `slots`.

        `slots` [2, tokens * heads] are rows of `token_rows` for layer 0's keys and values.
        """
        ours = self.token_rows[layer * 2 * self.kv_heads * self.block_size :]
        ours.index_copy_(0, slots[0], keys.reshape(-1, self.head_dim))
        ours.index_copy_(0, slots[1], values.reshape(-1, self.head_dim))

    def read(self, layer: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [sequences, heads, positions, head_dim] of one layer.

        `rows` [2, sequences, heads, n] are what `rows` says of their n blocks.
        """
        _, sequences, heads, count = rows.shape
        ours = self.block_rows[layer * 2 * self.kv_heads :].index_select(0, rows.flatten())
        keys, values = ours.view(2, sequences, heads, count * self.block_size, self.head_dim)
        return keys, values
