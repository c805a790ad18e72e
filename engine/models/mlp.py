"""The dense multi-layer perceptron: one product for gate and up, or up alone, one for down."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor

from engine.checkpoints.linear import Linear
from engine.kernels.gating import squared_relu
from engine.kernels.rows import Rows

Activation = Callable[[Tensor], Tensor]
Gate = Callable[[Tensor], Rows]
ACTIVATIONS: dict[str, Activation] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}


@dataclass(frozen=True, slots=True, eq=False)
class UngatedMlp:
    """down(activate(up(x))); `activate` makes rows in the form that `down` takes."""

    up: Linear
    down: Linear
    activate: Gate = squared_relu

    def __call__(self, normed: Rows) -> Tensor:
        """See Mlp in engine/models/layer.py."""
        return self.down(self.activate(self.up(normed)))


@dataclass(frozen=True, slots=True, eq=False)
class GatedMlp:
    """down(activate(gate(x)) * up(x)) (Shazeer 2020); `gate_up` gives both, gate first.

    `fused`, if given, replaces `activate`: it takes gates and ups together, [tokens, 2 * wide],
    and makes rows in the form that `down` takes.
    """

    gate_up: Linear
    down: Linear
    activate: Activation = F.silu
    fused: Gate | None = None

    def __call__(self, normed: Rows) -> Tensor:
        """See Mlp in engine/models/decoder.py."""
        both = self.gate_up(normed)
        if self.fused is not None:
            return self.down(self.fused(both))
        gate, up = both.chunk(2, dim=-1)
        return self.down(self.activate(gate) * up)
