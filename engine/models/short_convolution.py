"""A gated short convolution in place of attention: its last inputs in place of keys and values.

What is between its products is described in engine/kernels/short_convolution.py.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention.batch import Batch
from engine.checkpoints.linear import Linear
from engine.checkpoints.weight_loader import WeightLoader
from engine.kernels.recurrent import RecurrentInputs
from engine.kernels.rows import Rows
from engine.kernels.short_convolution import ConvolutionWeights
from engine.models.config import ModelConfig
from engine.models.expert_config import ConvolutionConfig
from engine.models.recurrent import recurrent_shape
from engine.models.rope import Rotations


@dataclass(frozen=True, slots=True, eq=False)
class ShortConvolution:
    """Layer `index` of those that keep a state. The last outputs of `inward` are the gates of
    what enters the convolution.
    """

    index: int
    inward: Linear
    weights: ConvolutionWeights
    output: Linear

    def __call__(self, normed: Rows, rotations: Rotations, batch: Batch) -> Tensor:
        """See Attention in engine/models/layer.py. Its positions are not rotated."""
        channels, made = self.weights.shape.channels, self.inward(normed)
        inputs = RecurrentInputs(*made.split((2 * channels, channels), 1))
        return self.output(batch.recurrence(self.index, self.weights, inputs))


def read_short_convolution(
    loader: WeightLoader, config: ModelConfig, sizes: ConvolutionConfig, index: int, at: str
) -> ShortConvolution:
    """Read the convolution whose tensors are under `at`; `index` as in ShortConvolution."""
    shape, hidden, bias = recurrent_shape(sizes), config.hidden_size, None
    channels, kernel = shape.channels, shape.taps + 1
    weight = loader.take(f"{at}conv.weight", channels, 1, kernel).squeeze(1)
    if sizes.bias:
        bias = loader.take(f"{at}conv.bias", channels, dtype=torch.float32)
    return ShortConvolution(
        index,
        loader.fuse(
            at, {"in_proj": 3 * channels}, hidden, bias=sizes.bias, order=_order(channels)
        ),
        ConvolutionWeights(shape, weight, bias),
        loader.fuse(at, {"out_proj": hidden}, channels, bias=sizes.bias),
    )


def _order(channels: int) -> Tensor:
    """Row indices of the first product, which a checkpoint has as gates of what enters, gates
    of what leaves, and values: to values, gates of what leaves, and the others.
    """
    entering, leaving, values = torch.arange(3 * channels).split(channels)
    return torch.cat((values, leaving, entering))
