"""Grouped-query attention of one layer: one product for queries, keys, values and gates."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from engine.attention.batch import Batch
from engine.attention.rotation import Rotation
from engine.checkpoints.linear import Linear
from engine.kernels.rows import Rows
from engine.kernels.style import AttentionStyle
from engine.models.norm import Norm
from engine.models.rope import Rotations

Gating = Callable[[Tensor, Tensor], Tensor]
"""Rows and gates, [tokens, size] each, to rows; see `sigmoid_gated` of Kernels."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupedAttention:
    """Layer `index` of those with KV, whose heads share keys and values in groups (Ainslie et
    al. 2023).

    `rope` is the index of the decoder's rope for queries and keys; None: no rotation. Norms of
    queries and keys are over each head, or else over all heads together. With `gated` there are
    gates, and it multiplies what heads read by their sigmoid. Values may be normed, and be keys
    before their norm and rotation. A layer that `shares_kv` has only queries, and `index` is
    the layer whose KV they read.
    """

    index: int
    num_heads: int
    num_kv_heads: int
    query_key_value: Linear
    output: Linear
    style: AttentionStyle
    rope: int | None = 0
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    value_norm: Norm | None = None
    keys_are_values: bool = False
    shares_kv: bool = False
    gated: Gating | None = None

    def __call__(self, normed: Rows, rotations: Rotations, batch: Batch) -> Tensor:
        """See Attention in engine/models/decoder.py."""
        return self.output(self.read(self.query_key_value(normed), rotations, batch))

    def read(self, mixed: Tensor, rotations: Rotations, batch: Batch) -> Tensor:
        """Attention without its products: queries, keys, values and any gates side by side,
        [tokens, (heads + 2 * kv_heads + gates) * head_dim], to the heads' results, [tokens,
        heads * head_dim].
        """
        mixed = mixed.view(len(mixed), sum(self._parts), -1)
        queries, keys, values, gates = mixed.split(self._parts, dim=1)
        rotation = None if self.rope is None else rotations[self.rope]
        if self.shares_kv:
            queries = batch.turn(self.index, queries, rotation, self.query_norm)
        else:
            values = self._values(keys, values)
            queries = self._write((queries, keys, values), rotation, batch)
        if rotation is not None:
            queries = rotation.scaled(queries)
        read = batch.attend(self.index, self.style, queries)
        return read if self.gated is None else self.gated(read, gates.flatten(1))

    @property
    def _parts(self) -> tuple[int, int, int, int]:
        """Heads of queries, keys, values and gates in one row of the first product."""
        heads, keys = self.num_heads, 0 if self.shares_kv else self.num_kv_heads
        return heads, keys, 0 if self.keys_are_values else keys, heads if self.gated else 0

    def _values(self, keys: Tensor, values: Tensor) -> Tensor:
        """What is written as values: not `keys` themselves, which are overwritten."""
        values = keys if self.keys_are_values else values
        return values if self.value_norm is None else self.value_norm(values)

    def _write(
        self, parts: tuple[Tensor, Tensor, Tensor], rotation: Rotation | None, batch: Batch
    ) -> Tensor:
        """Norm, rotate and write; returns the queries."""
        (queries, keys, values), norms = parts, None
        if self.query_norm is not None and self.key_norm is not None:
            norms = self.query_norm, self.key_norm
            if len(norms[0].weight) != queries.shape[2]:  # over all heads: cannot be fused
                queries, keys = _over_all(norms[0], queries), _over_all(norms[1], keys)
                norms = None
        return batch.turn_and_write(self.index, (queries, keys, values), rotation, norms)


def _over_all(norm: Norm, heads: Tensor) -> Tensor:
    """Norm [tokens, heads, head_dim] over all heads of a token together."""
    return norm(heads.flatten(1)).view(heads.shape)
