"""The decoder that all our families share, read top to bottom.

It is made of layers, and a layer of parts: norms, an attention, an MLP. Which parts, and with
which numbers, follows from the config (engine/models/config.py) when the weights are read
(engine/models/weights.py).
"""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor

from engine.attention.batch import Batch
from engine.attention.kv_memory import KvShape
from engine.attention.rotation import Rotation
from engine.checkpoints.linear import Linear
from engine.kernels.rows import Rows, whole_rows
from engine.models.config import ModelConfig
from engine.models.norm import LayerNorm, Norm, add_normed, normed
from engine.models.rope import Rotations


class Attention(Protocol):
    """What tokens read from those before them. It knows its layer, and writes its KV."""

    def __call__(self, normed: Rows, rotations: Rotations, batch: Batch) -> Tensor:
        """[tokens, hidden] to [tokens, hidden]."""


class Mlp(Protocol):
    """What each token makes of itself, dense or by experts."""

    def __call__(self, normed: Rows) -> Tensor:
        """[tokens, hidden] to [tokens, hidden]."""


class FewRowsPath(Protocol):
    """A fused computation of a layer for few rows (engine/models/few_rows.py)."""

    @property
    def most_rows(self) -> int:
        """How many are few."""

    def forward(
        self, hidden: Tensor, made: Tensor | None, rotations: Rotations, batch: Batch
    ) -> tuple[Tensor, None]:
        """See Layer; all that it makes is added already."""


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """Attention, then MLP, each normed before or after or both, each added to what was.

    `residual_scale` is what both are multiplied with when they are added (Granite). `few` is
    for few rows, where there is something for them.
    """

    attention: Attention
    mlp: Mlp
    attention_norm: LayerNorm | None = None
    attention_output_norm: Norm | None = None
    mlp_norm: LayerNorm | None = None
    mlp_output_norm: Norm | None = None
    residual_scale: float = 1.0
    few: FewRowsPath | None = None

    def forward(
        self, hidden: Tensor, made: Tensor | None, rotations: Rotations, batch: Batch
    ) -> tuple[Tensor, Tensor | None]:
        """[tokens, hidden], and what the layer before made of it, to the same of this one.

        What was made is added by whoever is next, who may do so on the way to a norm; None:
        it was added.
        """
        if self.few is not None and len(hidden) <= self.few.most_rows:
            return self.few.forward(hidden, made, rotations, batch)
        scale = self.residual_scale
        inputs, hidden = add_normed(self.attention_norm, made, hidden, scale)
        read = normed(self.attention_output_norm, self.attention(inputs, rotations, batch))
        inputs, hidden = add_normed(self.mlp_norm, read, hidden, scale)
        return hidden, normed(self.mlp_output_norm, self.mlp(inputs))


@dataclass(frozen=True, slots=True, eq=False)
class Decoder:
    """Token ids in, hidden states out, KV written on the way.

    `embedding_scale` is the config's, as it is used: rounded where the family rounds it.
    """

    config: ModelConfig
    embedding: Tensor  # [vocabulary, hidden]
    layers: tuple[Layer, ...]
    norm: Norm
    head: Linear
    ropes: tuple[Tensor, ...]  # each [positions, 2, head_dim], in the weights' dtype
    embedding_scale: float | None = None

    @property
    def kv_shape(self) -> KvShape:
        """What is kept of a token."""
        config = self.config
        if (latent := config.latent) is not None:
            width = latent.rank + config.head_dim
            return KvShape(config.num_layers, 1, width, parts=1, value_width=latent.rank)
        return KvShape(config.num_layers, config.num_kv_heads, config.head_dim)

    def forward(self, tokens: Tensor, batch: Batch) -> Tensor:
        """[tokens] ids to [tokens, hidden], normalised and ready for `logits`."""
        return self.through(self.embed(tokens), self.rotations(batch), batch)

    def embed(self, tokens: Tensor) -> Tensor:
        """[tokens] ids to [tokens, hidden]."""
        hidden, scale = F.embedding(tokens, self.embedding), self.embedding_scale
        return hidden if scale is None else hidden * scale

    def rotations(self, batch: Batch) -> Rotations:
        """By each rope, at the positions of the batch."""
        return [Rotation(rope, batch.positions) for rope in self.ropes]

    def through(self, hidden: Tensor, rotations: Rotations, batch: Batch) -> Tensor:
        """All layers: what `embed` made to what `forward` does."""
        made: Tensor | None = None
        for layer in self.layers:
            hidden, made = layer.forward(hidden, made, rotations, batch)
        return whole_rows(add_normed(self.norm, made, hidden, self.config.residual_scale)[0])

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] to [rows, vocabulary], float32."""
        logits, scale = self.head(hidden).float(), self.config.logits_scale
        logits = logits if scale == 1 else logits * scale
        cap = self.config.logits_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)
