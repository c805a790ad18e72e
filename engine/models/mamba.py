"""A Mamba-2 layer in place of attention, or beside it: a state of fixed size.

What is between its products is described in engine/kernels/mamba.py.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention.batch import Batch
from engine.checkpoints.linear import Linear
from engine.checkpoints.weight_loader import WeightLoader
from engine.kernels.mamba import MambaWeights
from engine.kernels.recurrent import RecurrentInputs, RecurrentShape
from engine.kernels.rows import Rows
from engine.models.config import ModelConfig
from engine.models.expert_config import MambaConfig
from engine.models.recurrent import recurrent_shape
from engine.models.rope import Rotations


@dataclass(frozen=True, slots=True, eq=False)
class Mamba:
    """Layer `index` of those that keep a state. The last outputs of `inward` are the rates."""

    index: int
    inward: Linear
    weights: MambaWeights
    output: Linear

    def __call__(self, normed: Rows, rotations: Rotations, batch: Batch) -> Tensor:
        """See Attention in engine/models/layer.py. Its positions are not rotated."""
        shape, made = self.weights.shape, self.inward(normed)
        inputs = made.split((shape.channels + shape.values, shape.value_heads), 1)
        return self.output(batch.recurrence(self.index, self.weights, RecurrentInputs(*inputs)))


def read_mamba(
    loader: WeightLoader, config: ModelConfig, mamba: MambaConfig, index: int, at: str
) -> Mamba:
    """Read the Mamba-2 layer whose tensors are under `at`; `index` as in Mamba."""
    shape, hidden, exact = recurrent_shape(mamba), config.hidden_size, torch.float32
    heads, channels = shape.value_heads, shape.channels
    order, mixing = _orders(shape)
    placed = mixing.to(loader.device)
    convolution = loader.take(f"{at}conv1d.weight", channels, 1, shape.taps + 1)
    offsets = torch.zeros(channels, dtype=exact, device=loader.device)
    if mamba.convolution_bias:
        offsets = loader.take(f"{at}conv1d.bias", channels, dtype=exact)[placed]
    weights = MambaWeights(
        shape,
        convolution.squeeze(1)[placed],
        offsets,
        -loader.take(f"{at}A_log", heads, dtype=exact).exp(),
        loader.take(f"{at}dt_bias", heads, dtype=exact),
        loader.take(f"{at}D", heads, dtype=exact),
        loader.take(f"{at}norm.weight", shape.values) if mamba.norm else None,
        shape.key_heads,
        config.norm_eps,
    )
    return Mamba(
        index,
        loader.fuse(at, {"in_proj": len(order)}, hidden, bias=mamba.bias, order=order),
        weights,
        loader.fuse(at, {"out_proj": hidden}, shape.values, bias=mamba.output_bias),
    )


def _orders(shape: RecurrentShape) -> tuple[Tensor, Tensor]:
    """Row indices of the first product, which a checkpoint has as gates, values, keys, queries
    and rates, and of the convolution, without gates and rates: to queries, keys, values, gates
    and rates.
    """
    widths = [shape.values] * 2 + [shape.keys] * 2 + [shape.value_heads]
    gates, values, keys, queries, rates = torch.arange(sum(widths)).split(widths)
    mixing = torch.cat((queries, keys, values))
    return torch.cat((mixing, gates, rates)), mixing - shape.values
