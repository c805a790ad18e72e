"""The decoder that all our families share.

It consists of layers (engine/models/layer.py). The config (engine/models/config.py) determines
their parts and numbers when the weights are read (engine/models/weights.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor

from engine.attention.batch import Batch
from engine.attention.kv_memory import KvShape, LayerKind, StateShape
from engine.attention.latents import LatentSizes
from engine.attention.rotation import Rotation
from engine.checkpoints.linear import Linear
from engine.kernels.rows import whole_rows
from engine.lora.active import ActiveAdapters
from engine.models.config import ModelConfig
from engine.models.draft_head import DraftHead, LayerInputs
from engine.models.layer import Layer, add_scaled
from engine.models.layer_inputs import LayerInputMaker
from engine.models.model import Model
from engine.models.norm import Norm, add_normed
from engine.models.recurrent import recurrent_shape
from engine.models.rope import Rotations


@dataclass(frozen=True, slots=True, eq=False)
class Decoder:
    """Token ids in, hidden states out; KV is written on the way.

    `embedding_scale` is the config's, rounded if the family rounds it. `adapters` tells the
    linear layers which rows have which LoRA adapter; None: there are none. `draft_head` has its
    KV in the same memory, behind the layers'; it is None unless the config asks for it. If it
    reads more than what the last layer returns, that is kept as `layer_inputs`. The
    `input_maker` makes an input of each layer's own, if the family has such.
    """

    config: ModelConfig
    embedding: Tensor  # [vocabulary, hidden]
    layers: tuple[Layer, ...]
    norm: Norm
    head: Linear
    ropes: tuple[Tensor, ...]  # each [positions, 2, head_dim], in the weights' dtype
    embedding_scale: float | None = None
    query_scales: Tensor | None = None  # [positions], in the weights' dtype
    adapters: ActiveAdapters | None = None
    draft_head: DraftHead | None = None
    layer_inputs: LayerInputs | None = None
    input_maker: LayerInputMaker | None = None

    @property
    def kv_shape(self) -> KvShape:
        """See Model."""
        return kv_shape_of(self.config)

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
        """[tokens] ids to [tokens, hidden], and behind that the layers' own inputs, if any."""
        hidden, scale = F.embedding(tokens, self.embedding), self.embedding_scale
        hidden = hidden if scale is None else hidden * scale
        return hidden if self.input_maker is None else self.input_maker.beside(tokens, hidden)

    def rotations(self, batch: Batch) -> Rotations:
        """The rotation of each rope, at the positions of the batch."""
        return [Rotation(rope, batch.positions, self.query_scales) for rope in self.ropes]

    def through(self, hidden: Tensor, rotations: Rotations, batch: Batch) -> Tensor:
        """Run all layers and the last norm: the result of `embed` to that of `forward`."""
        made, scale, kept = None, self.config.residual_scale, self.layer_inputs
        own: Sequence[Tensor | None] = [None] * len(self.layers)
        if self.input_maker is not None:
            hidden, own = self.input_maker.apart(hidden, self.config.hidden_size)
        for index, layer in enumerate(self.layers):
            if kept is not None and index in kept.layers:
                kept.keep(index, add_scaled(hidden, made, scale))
            hidden, made = layer.forward(hidden, made, rotations, batch, own[index])
        return whole_rows(add_normed(self.norm, made, hidden, scale)[0])

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] to [rows, vocabulary], float32."""
        logits, scale = self.head(hidden).float(), self.config.logits_scale
        logits = logits if scale == 1 else logits * scale
        cap = self.config.logits_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)


def kv_shape_of(config: ModelConfig) -> KvShape:
    """The KV of one token, in all layers that have any, and the state of a sequence."""
    if (latent := config.latent) is not None:
        width = latent.rank + config.head_dim
        return KvShape(config.kv_layers, 1, width, parts=1, value_width=latent.rank)
    state = None
    if (sizes := config.recurrence) is not None and config.recurrent_layers:
        state = StateShape(config.recurrent_layers, recurrent_shape(sizes))
    count, other = config.global_kv_layers, config.global_heads
    shape = KvShape(config.kv_layers - count, config.num_kv_heads, config.head_dim, state=state)
    if other is None:
        return shape
    kind = LayerKind(count, other.num_kv_heads, other.head_dim)
    return replace(shape, global_layers=kind)


def adapters_of(model: Model) -> ActiveAdapters | None:
    """A model's LoRA adapters, to be told of each plan's; None: it has none."""
    return model.adapters if isinstance(model, Decoder) else None
