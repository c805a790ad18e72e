"""The decoder that all our families share.

It consists of layers, and each layer of parts: norms, an attention, an MLP. The config
(engine/models/config.py) determines the parts and their numbers when the weights are read
(engine/models/weights.py).
"""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor

from engine.attention.batch import Batch
from engine.attention.kv_memory import KvShape
from engine.attention.latents import LatentSizes
from engine.attention.rotation import Rotation
from engine.checkpoints.linear import Linear
from engine.kernels.rows import Rows, whole_rows
from engine.lora.active import ActiveAdapters
from engine.models.config import ModelConfig
from engine.models.model import Model
from engine.models.norm import LayerNorm, Norm, add_normed, normed
from engine.models.rope import Rotations


class Attention(Protocol):
    """The attention of one layer, which also writes the layer's KV."""

    def __call__(self, normed: Rows, rotations: Rotations, batch: Batch) -> Tensor:
        """[tokens, hidden] to [tokens, hidden]."""


class Mlp(Protocol):
    """The feed-forward part of one layer, dense or with experts."""

    def __call__(self, normed: Rows) -> Tensor:
        """[tokens, hidden] to [tokens, hidden]."""


class FewRowsAttention(Protocol):
    """Norm, attention and residual, fused for few rows (engine/models/few_rows.py)."""

    def takes(self, rows: int) -> bool:
        """Whether it can compute a step of so many rows."""

    def __call__(self, hidden: Tensor, rotations: Rotations, batch: Batch) -> Tensor:
        """The residual stream before to the one behind, [tokens, hidden] each."""


class FewRowsMlp(Protocol):
    """Norm, MLP and residual, likewise."""

    def takes(self, rows: int) -> bool:
        """See FewRowsAttention, here and below."""

    def __call__(self, hidden: Tensor) -> Tensor:
        """See FewRowsAttention."""


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """Attention, then MLP, each with a norm before or after or both, and a residual around it.

    Both outputs are multiplied by `residual_scale` when they are added (Granite). Each half may
    have a fused computation for few rows.
    """

    attention: Attention
    mlp: Mlp
    attention_norm: LayerNorm | None = None
    attention_output_norm: Norm | None = None
    mlp_norm: LayerNorm | None = None
    mlp_output_norm: Norm | None = None
    residual_scale: float = 1.0
    few_attention: FewRowsAttention | None = None
    few_mlp: FewRowsMlp | None = None

    def forward(
        self, hidden: Tensor, made: Tensor | None, rotations: Rotations, batch: Batch
    ) -> tuple[Tensor, Tensor | None]:
        """The residual stream and the last part's output (`made`), [tokens, hidden] each.

        Takes the layer before's, returns this one's. `made` is not yet added to the stream, so
        that the next norm can be fused with the addition; None: it is added already.
        """
        hidden, read = self._attend(hidden, made, rotations, batch)
        scale, few = self.residual_scale, self.few_mlp
        if few is not None and few.takes(len(hidden)):
            return few(_added(hidden, read, scale)), None
        inputs, hidden = add_normed(self.mlp_norm, read, hidden, scale)
        return hidden, normed(self.mlp_output_norm, self.mlp(inputs))

    def _attend(
        self, hidden: Tensor, made: Tensor | None, rotations: Rotations, batch: Batch
    ) -> tuple[Tensor, Tensor | None]:
        """The residual stream and the attention's output, as `forward`."""
        scale, few = self.residual_scale, self.few_attention
        if few is not None and few.takes(len(hidden)):
            return few(_added(hidden, made, scale), rotations, batch), None
        inputs, hidden = add_normed(self.attention_norm, made, hidden, scale)
        read = self.attention(inputs, rotations, batch)
        return hidden, normed(self.attention_output_norm, read)


@dataclass(frozen=True, slots=True, eq=False)
class Decoder:
    """Token ids in, hidden states out; KV is written on the way.

    `embedding_scale` is the config's, rounded if the family rounds it. `adapters` tells the
    linear layers which rows have which LoRA adapter; None: there are none.
    """

    config: ModelConfig
    embedding: Tensor  # [vocabulary, hidden]
    layers: tuple[Layer, ...]
    norm: Norm
    head: Linear
    ropes: tuple[Tensor, ...]  # each [positions, 2, head_dim], in the weights' dtype
    embedding_scale: float | None = None
    adapters: ActiveAdapters | None = None

    @property
    def kv_shape(self) -> KvShape:
        """See Model."""
        config = self.config
        if (latent := config.latent) is not None:
            width = latent.rank + config.head_dim
            return KvShape(config.num_layers, 1, width, parts=1, value_width=latent.rank)
        return KvShape(config.num_layers, config.num_kv_heads, config.head_dim)

    def workspace_bytes(self, tokens: int) -> int:
        """Memory that attention over a context of `tokens` takes, beside activations."""
        if (latent := self.config.latent) is None:
            return 0
        sizes = LatentSizes(
            latent.rank, self.config.head_dim, latent.plain_dim, latent.value_dim
        )
        return sizes.workspace_bytes(self.config.num_heads, tokens, self.embedding.itemsize)

    def forward(self, tokens: Tensor, batch: Batch) -> Tensor:
        """[tokens] ids to [tokens, hidden], normalised and ready for `logits`."""
        return self.through(self.embed(tokens), self.rotations(batch), batch)

    def embed(self, tokens: Tensor) -> Tensor:
        """[tokens] ids to [tokens, hidden]."""
        hidden, scale = F.embedding(tokens, self.embedding), self.embedding_scale
        return hidden if scale is None else hidden * scale

    def rotations(self, batch: Batch) -> Rotations:
        """The rotation of each rope, at the positions of the batch."""
        return [Rotation(rope, batch.positions) for rope in self.ropes]

    def through(self, hidden: Tensor, rotations: Rotations, batch: Batch) -> Tensor:
        """Run all layers and the last norm: the result of `embed` to that of `forward`."""
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


def _added(hidden: Tensor, made: Tensor | None, scale: float) -> Tensor:
    """The residual stream with a part's output, if that is not added yet."""
    return hidden if made is None else hidden.add(made, alpha=scale)


def adapters_of(model: Model) -> ActiveAdapters | None:
    """A model's LoRA adapters, to be told of each plan's; None: it has none."""
    return model.adapters if isinstance(model, Decoder) else None
