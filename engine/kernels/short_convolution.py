"""The gated short convolution of LFM2 (Liquid AI 2025): a state that is only its last inputs.

Each channel of a token has a number x, a gate b of what enters the convolution, and a gate c of
what leaves it. With `taps` tokens before this one, none of which is nonlinear:

    y = b x          z = `bias` + the sum of w[tap] y[tap]          read = c z

In the terms of engine/kernels/recurrent.py, x are values, b rates, and c gates; each channel is
a value head, whose keys are no numbers wide, and which has no other state.
"""

from dataclasses import dataclass, field

from torch import Tensor

from engine.kernels.recurrent import Heads, RecurrentShape


@dataclass(frozen=True, slots=True, eq=False)
class ConvolutionWeights:
    """See RecurrentWeights. Rates are [tokens, channels]."""

    shape: RecurrentShape
    convolution: Tensor  # [channels, taps + 1], the newest token last
    bias: Tensor | None  # [channels] float32
    gated_inputs: bool = field(init=False, default=True)
    by_tap: Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_tap", self.convolution.float().T.contiguous())

    def heads(self, convolved: Tensor, rates: Tensor) -> Heads:
        """See RecurrentWeights."""
        nothing, values = convolved.new_zeros(*convolved.shape, 0), convolved.unsqueeze(-1)
        return Heads(nothing, nothing, values, convolved, convolved)

    def step(self, heads: Heads, states: Tensor) -> tuple[Tensor, Tensor]:
        """See RecurrentWeights."""
        return heads.values, states

    def chunk(self, heads: Heads, state: Tensor) -> tuple[Tensor, Tensor]:
        """See RecurrentWeights."""
        return heads.values, state

    def gate_and_norm(self, read: Tensor, mixed: Tensor) -> Tensor:
        """See RecurrentWeights."""
        gates = mixed[:, self.shape.channels :].float()
        return (read.flatten(1) * gates).to(mixed.dtype)
