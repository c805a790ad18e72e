"""An input of each layer's own, beside the residual stream (Gemma 3n's per-layer embeddings).

It is made before the first layer, of the token and of its embedding. A layer ends with a gated
product of it, which is added to the stream (Gemma 4 multiplies that by a scalar then).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor

from engine.checkpoints.linear import Linear
from engine.models.mlp import Activation
from engine.models.norm import Norm

SHARE = 2**-0.5  # of the sum of two inputs with a mean square of one each


@dataclass(frozen=True, slots=True, eq=False)
class LayerInputMaker:
    """Makes the inputs of all layers, each of `width` numbers.

    What is looked up, and what is made of hidden states, are multiplied by a scale each.
    """

    embedding: Tensor  # [vocabulary, layers * width]
    projection: Linear
    norm: Norm  # [width]
    scales: tuple[float, float]

    @property
    def width(self) -> int:
        """Of one layer's input."""
        return len(self.norm.weight)

    def beside(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """[tokens, hidden] embeddings with all layers' inputs behind them.

        That is [tokens, hidden + layers * width]; see `apart`.
        """
        looked_up = F.embedding(tokens, self.embedding) * self.scales[0]
        made = self.projection(hidden) * self.scales[1]
        made = self.norm(made.view(len(made), -1, self.width)).flatten(1)
        return torch.cat((hidden, (made + looked_up) * SHARE), 1)

    def apart(self, both: Tensor, hidden: int) -> tuple[Tensor, Sequence[Tensor]]:
        """The embeddings, and the inputs of each layer, [tokens, width]."""
        stream, inputs = both.tensor_split([hidden], 1)
        return stream.contiguous(), inputs.split(self.width, 1)


@dataclass(frozen=True, slots=True, eq=False)
class GatedInput:
    """What a layer makes of its own input: a product gated by the stream, and normed."""

    gate: Linear
    activate: Activation
    projection: Linear
    norm: Norm

    def __call__(self, stream: Tensor, own: Tensor) -> Tensor:
        """[tokens, hidden] and [tokens, width] to [tokens, hidden], which is to be added."""
        return self.norm(self.projection(self.activate(self.gate(stream)) * own))


@dataclass(frozen=True, slots=True, eq=False)
class LayerEnd:
    """What the residual stream goes through at the end of a layer."""

    gated: GatedInput | None
    scalar: Tensor  # [1]

    def __call__(self, stream: Tensor, own: Tensor | None) -> Tensor:
        """[tokens, hidden], and the layer's own input, if any, to [tokens, hidden]."""
        if self.gated is not None and own is not None:
            stream = stream + self.gated(stream, own)
        return stream * self.scalar
