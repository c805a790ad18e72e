"""Mamba-2 (Dao and Gu 2024): what a token writes to a state is its value, times its step.

A token with query q, key k (the paper's C and B), value v and step d changes and reads it:

    S = exp(d `decay`) S          S = S + k (d v)^T          read = S^T q + `skip` v

The step is softplus(rate + `offset`). What was read is gated, then normed by groups of channels
if the model has a norm there. The rest is in engine/kernels/recurrent.py.

`chunk` computes many tokens at once, as in section 6 of the paper: what they read of each other
is a product of queries and keys under a mask of decays. These are the twins of the kernels.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor

from engine.kernels.recurrent import Heads, RecurrentShape, between, grouped


@dataclass(frozen=True, slots=True, eq=False)
class MambaWeights:
    """See RecurrentWeights. Rates are [tokens, value_heads]."""

    shape: RecurrentShape
    convolution: Tensor  # [channels, taps + 1], the newest token last
    bias: Tensor  # [channels] float32
    decay: Tensor  # [value_heads] float32, negative
    offset: Tensor  # [value_heads] float32
    skip: Tensor  # [value_heads] float32
    norm: Tensor | None  # [values], float32 or the model's dtype
    norm_groups: int  # of as many channels each, which are normed by themselves
    eps: float
    gated_inputs: bool = field(init=False, default=False)
    by_tap: Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_tap", self.convolution.float().T.contiguous())

    def heads(self, convolved: Tensor, rates: Tensor) -> Heads:
        """See RecurrentWeights."""
        sharing = self.shape.value_heads // self.shape.key_heads
        queries, keys, values = grouped(self.shape, convolved)
        steps = F.softplus(rates.float() + self.offset)
        return Heads(
            queries.repeat_interleave(sharing, -2),
            keys.repeat_interleave(sharing, -2),
            values,
            self.decay * steps,
            steps,
        )

    def step(self, heads: Heads, states: Tensor) -> tuple[Tensor, Tensor]:
        """See RecurrentWeights."""
        queries, keys, values, decays, rates = heads
        written = values * rates[..., None]
        states = states * decays.exp()[..., None, None]
        states = states + keys[..., None] * written[..., None, :]
        read = torch.einsum("shkv,shk->shv", states, queries)
        return read + self.skip[:, None] * values, states

    def chunk(self, heads: Heads, state: Tensor) -> tuple[Tensor, Tensor]:
        """See RecurrentWeights."""
        queries, keys, values = (one.transpose(0, 1) for one in heads[:3])
        since, faded = between(heads.decays)
        written = values * heads.rates.T[..., None]
        read = since.exp() * (queries @ state) + (queries @ keys.mT * faded) @ written
        last = since[:, -1:]
        state = last.exp() * state + (keys * (last - since).exp()).mT @ written
        return (read + self.skip[:, None, None] * values).transpose(0, 1), state

    def gate_and_norm(self, read: Tensor, mixed: Tensor) -> Tensor:
        """See RecurrentWeights."""
        gates = F.silu(mixed[:, self.shape.channels :].float())
        gated = read.flatten(1) * gates
        if self.norm is None:
            return gated.to(mixed.dtype)
        groups = gated.unflatten(1, (self.norm_groups, -1))
        normed = F.rms_norm(groups, groups.shape[-1:], eps=self.eps).flatten(1)
        return (normed * self.norm.float()).to(mixed.dtype)
