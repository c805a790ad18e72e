"""Attention over latents (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1): a small KV cache.

The cache has one row per token for all heads: a latent, from which each head's key and value
could be made by the head's own matrices, and one rotated key that all heads share. Keys and
values are never made. A head's key matrix is multiplied into its query instead, and its value
matrix into its result, so that every head attends to the stored rows directly:

    query . (K latent) = (K^T query) . latent        sum w (V latent) = V (sum w latent)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention.batch import Batch
from engine.checkpoints.linear import Linear
from engine.kernels.contract import Latents
from engine.kernels.rows import Rows
from engine.kernels.style import AttentionStyle
from engine.models.norm import LayerNorm, Norm
from engine.models.rope import Rotations


@dataclass(frozen=True, slots=True, eq=False)
class LatentQuery:
    """Queries made through a latent as well: norm, then a product as wide as all heads."""

    norm: LayerNorm
    up: Linear

    def __call__(self, latent: Tensor) -> Tensor:
        """[tokens, query rank] to [tokens, heads * head size]."""
        return self.up(self.norm(latent))


@dataclass(frozen=True, slots=True, eq=False)
class LatentAttention:
    """Layer `index`. A head's query has a plain part, then a part that is rotated.

    `inward` makes, side by side: the query, or its latent if `query` is set; the token's
    latent of `rank` numbers; its shared key.
    """

    index: int
    inward: Linear
    query: LatentQuery | None
    latent_norm: Norm
    keys: Tensor  # [heads, plain size, rank]
    values: Tensor  # [heads, rank, value size]
    output: Linear
    style: AttentionStyle
    rope: int = 0

    def __call__(self, normed: Rows, rotations: Rotations, batch: Batch) -> Tensor:
        """See Attention in engine/models/decoder.py."""
        heads, plain_size, rank = self.keys.shape
        width = batch.memory.shape.width
        mixed = self.inward(normed)
        asked, rows = mixed.split((mixed.shape[1] - width, width), 1)
        queries = asked if self.query is None else self.query(asked)
        plain, turning = queries.view(len(normed), heads, -1).split(
            (plain_size, width - rank), 2
        )
        absorbed = queries.new_empty(len(normed), heads, width)
        _multiply(plain.transpose(0, 1), self.keys, absorbed[..., :rank].transpose(0, 1))
        latents = Latents(rows.unsqueeze(1), self.latent_norm, turning, absorbed[..., rank:])
        batch.turn_and_write_latents(self.index, latents, rotations[self.rope])
        read = batch.attend(self.index, self.style, absorbed)
        read = read.view(len(normed), heads, rank).transpose(0, 1)  # [heads, tokens, rank]
        return self.output(torch.bmm(read, self.values).transpose(0, 1).flatten(1))


def _multiply(rows: Tensor, matrices: Tensor, into: Tensor) -> None:
    """A product for each head, written into part of a row; on a CPU into a tensor of its own,
    and then copied, as writing directly takes three times as long.
    """
    if into.is_cuda:
        torch.bmm(rows, matrices, out=into)
    else:
        into.copy_(torch.bmm(rows, matrices))
