"""The dense decoder that Llama, Mistral and Qwen share, read top to bottom.

Its families differ in data only (engine/models/config.py); its weights are fused where one
product serves several: query, key and value, and gate and up.
"""

from dataclasses import dataclass

import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor

from engine.attention.paged import AttentionBatch
from engine.models.config import ModelConfig
from engine.models.linear import Linear
from engine.models.rope import rotate


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer; `query_norm` and `key_norm` [head_dim] only where the family has them."""

    attention_norm: Tensor
    query_key_value: Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
    attention_output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class Decoder:
    """Token ids in, hidden states out, KV written on the way."""

    config: ModelConfig
    embedding: Tensor  # [vocabulary, hidden]
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Linear
    rope: Tensor  # [positions, 2, head_dim], in the weights' dtype

    def forward(self, tokens: Tensor, batch: AttentionBatch) -> Tensor:
        """[tokens] ids to [tokens, hidden], normalised and ready for `logits`."""
        cos, sin = self.rope[batch.positions].unsqueeze(2).unbind(1)  # [tokens, 1, head_dim]
        hidden = F.embedding(tokens, self.embedding)
        for index, layer in enumerate(self.layers):
            normed = self._norm(hidden, layer.attention_norm)
            hidden = hidden + self._attention(index, layer, normed, cos, sin, batch)
            hidden = hidden + self._mlp(layer, self._norm(hidden, layer.mlp_norm))
        return self._norm(hidden, self.norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] to [rows, vocabulary], float32."""
        return self.head(hidden).float()

    def _attention(
        self,
        index: int,
        layer: LayerWeights,
        normed: Tensor,
        cos: Tensor,
        sin: Tensor,
        batch: AttentionBatch,
    ) -> Tensor:
        config = self.config
        heads, kv_heads = config.num_heads, config.num_kv_heads
        mixed = layer.query_key_value(normed)
        mixed = mixed.view(-1, heads + 2 * kv_heads, config.head_dim)
        turning, values = mixed.split((heads + kv_heads, kv_heads), dim=1)
        if layer.query_norm is not None and layer.key_norm is not None:
            queries, keys = turning.split((heads, kv_heads), dim=1)
            queries = self._norm(queries, layer.query_norm)
            keys = self._norm(keys, layer.key_norm)
            queries, keys = rotate(queries, cos, sin), rotate(keys, cos, sin)
        else:
            queries, keys = rotate(turning, cos, sin).split((heads, kv_heads), dim=1)
        batch.memory.write(index, batch.slots, keys, values)
        attended = batch.attend(index, config.windows[index], queries)
        return layer.attention_output(attended)

    def _mlp(self, layer: LayerWeights, normed: Tensor) -> Tensor:
        gate, up = layer.gate_up(normed).chunk(2, dim=-1)
        return layer.down(F.silu(gate) * up)

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(hidden, (hidden.shape[-1],), weight, self.config.norm_eps)
