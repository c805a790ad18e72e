"""A gated delta net as a layer's attention: a state of fixed size in place of keys and values.

What is between its products is described in engine/kernels/delta_net.py.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention.batch import Batch
from engine.checkpoints.linear import Linear
from engine.checkpoints.weight_loader import WeightLoader
from engine.kernels.delta_net import DeltaWeights
from engine.kernels.recurrent import RecurrentInputs, RecurrentShape
from engine.kernels.rows import Rows
from engine.models.config import ModelConfig
from engine.models.expert_config import DeltaConfig
from engine.models.recurrent import recurrent_shape
from engine.models.rope import Rotations


@dataclass(frozen=True, slots=True, eq=False)
class DeltaNet:
    """Layer `index` of those that keep a state."""

    index: int
    inward: Linear
    rates: Linear
    weights: DeltaWeights
    output: Linear

    def __call__(self, normed: Rows, rotations: Rotations, batch: Batch) -> Tensor:
        """See Attention in engine/models/layer.py. Its positions are not rotated."""
        inputs = RecurrentInputs(self.inward(normed), self.rates(normed))
        return self.output(batch.recurrence(self.index, self.weights, inputs))


def read_delta_net(
    loader: WeightLoader, config: ModelConfig, delta: DeltaConfig, index: int, at: str
) -> DeltaNet:
    """Read the delta net whose tensors are under `at`; `index` as in DeltaNet."""
    shape, hidden, exact = recurrent_shape(delta), config.hidden_size, torch.float32
    heads, order, rate_order = shape.value_heads, None, None
    mixed = {"in_proj_qkv": shape.channels, "in_proj_z": shape.values}
    rates = {"in_proj_b": heads, "in_proj_a": heads}
    if delta.by_key_head:
        mixed = {"in_proj_qkvz": shape.channels + shape.values}
        rates = {"in_proj_ba": 2 * heads}
        order, rate_order = _apart(shape)
    convolution = loader.take(f"{at}conv1d.weight", shape.channels, 1, shape.taps + 1)
    weights = DeltaWeights(
        shape,
        convolution.squeeze(1),
        -loader.take(f"{at}A_log", heads, dtype=exact).exp(),
        loader.take(f"{at}dt_bias", heads, dtype=exact),
        loader.take(f"{at}norm.weight", shape.value_width),
        config.norm_eps,
    )
    return DeltaNet(
        index,
        loader.fuse(at, mixed, hidden, bias=False, order=order),
        loader.fuse(at, rates, hidden, bias=False, order=rate_order),
        weights,
        loader.fuse(at, {"out_proj": hidden}, shape.values, bias=False),
    )


def _apart(shape: RecurrentShape) -> tuple[Tensor, Tensor]:
    """Row indices that put together what a checkpoint has by key head: all queries, keys,
    values and gates; and all rates, then decays.
    """
    sharing = shape.value_heads // shape.key_heads
    widths = shape.key_width, shape.key_width, *[sharing * shape.value_width] * 2
    mixed = torch.arange(shape.channels + shape.values).view(shape.key_heads, -1)
    rates = torch.arange(2 * shape.value_heads).view(shape.key_heads, -1)
    return (
        torch.cat([one.flatten() for one in mixed.split(widths, 1)]),
        torch.cat([one.flatten() for one in rates.split(sharing, 1)]),
    )
