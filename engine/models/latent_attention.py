"""Attention over latents (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1): a small KV cache.

The cache has one row per token for all heads: a latent, from which each head's key and value
could be made by the head's own matrices, and one rotated key that all heads share. A head's key
matrix is multiplied into its query instead, and its value matrix into its result, so that every
head attends to the stored rows directly:

    query . (K latent) = (K^T query) . latent        sum w (V latent) = V (sum w latent)

A chunk of many tokens is the exception: with its keys and values made, it multiplies less. See
engine/attention/latents.py.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention.batch import Batch
from engine.attention.latents import ExpandedChunk, LatentPart
from engine.checkpoints.linear import Linear
from engine.kernels.contract import Latents
from engine.kernels.rows import Rows
from engine.kernels.style import AttentionStyle
from engine.models.latent_heads import LatentHeads
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
    heads: LatentHeads
    output: Linear
    style: AttentionStyle
    rotation: int = 0

    def __call__(self, normed: Rows, rotations: Rotations, batch: Batch) -> Tensor:
        """See Attention in engine/models/decoder.py."""
        sizes, rotation = self.heads.sizes, rotations[self.rotation]
        width = sizes.rank + sizes.rope
        mixed = self.inward(normed)
        asked, rows = mixed.split((mixed.shape[1] - width, width), 1)
        queries = asked if self.query is None else self.query(asked)
        queries = rotation.scaled(queries.view(len(normed), len(self.heads), sizes.key))
        plain, turning = queries.split((sizes.plain, sizes.rope), 2)
        parts = batch.latent_parts(sizes)
        absorbed = None if parts else self.heads.absorb(plain)
        turned = torch.empty_like(turning) if absorbed is None else absorbed[..., sizes.rank :]
        latents = Latents(rows.unsqueeze(1), self.latent_norm, turning, turned)
        batch.turn_and_write_latents(self.index, latents, rotation)
        if absorbed is not None:
            read = batch.attend(self.index, self.style, absorbed)
            return self.output(self.heads.values_of(read))
        turning.copy_(turned)
        return self.output(torch.cat([self._attend(part, queries) for part in parts]))

    def _attend(self, part: LatentPart, queries: Tensor) -> Tensor:
        """Rotated queries [tokens, heads, key size] to values [rows, heads * value size]."""
        ours, sizes = queries[part.rows], self.heads.sizes
        if part.expanded is not None:
            return self._attend_expanded(part.expanded, ours)
        assert part.absorbed is not None
        absorbed = self.heads.absorb(ours[..., : sizes.plain])
        absorbed[..., sizes.rank :] = ours[..., sizes.plain :]
        return self.heads.values_of(part.absorbed.attend(self.index, self.style, absorbed))

    def _attend_expanded(self, chunk: ExpandedChunk, queries: Tensor) -> Tensor:
        """[rows, heads, key size] to [rows, heads * value size], some heads at a time."""
        latents = chunk.latents(self.index).to(queries.dtype)
        heads, sizes = len(self.heads), self.heads.sizes
        each = sizes.heads_at_once(heads, len(latents), latents.itemsize)
        read = list[Tensor]()
        for first in range(0, heads, each):
            some = slice(first, first + each)
            made = self.heads.expand(latents, some)
            read.append(chunk.attend(self.style, queries[:, some], made, sizes.value))
        return read[0] if len(read) == 1 else torch.cat(read, 1)
