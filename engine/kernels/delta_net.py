"""The gated delta net (Yang, Kautz and Hatamizadeh 2025): what a token writes to a state is
what is missing there.

A token with query q, key k, value v, decay a and rate b changes and reads it:

    S = a S          u = b (v - S^T k)          S = S + k u^T          read = S^T q

Queries and keys are scaled to length 1, and queries divided by the root of their width. What
was read is normed by head, then gated. The rest is in engine/kernels/recurrent.py.

`chunk` computes many tokens at once, as the paper's section 3.3 does: the u of all of them
solve one triangular system. These are the twins of the kernels.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor

from engine.kernels.recurrent import Heads, RecurrentShape, between, grouped

SMALLEST = 1e-6  # added to squared lengths of queries and keys


@dataclass(frozen=True, slots=True, eq=False)
class DeltaWeights:
    """See RecurrentWeights. Rates are [tokens, 2 * value_heads]: b before its sigmoid, then a,
    which makes the decay exp(`decay` * softplus(a + `offset`)).
    """

    shape: RecurrentShape
    convolution: Tensor  # [channels, taps + 1], the newest token last
    decay: Tensor  # [value_heads] float32, negative
    offset: Tensor  # [value_heads] float32
    norm: Tensor  # [value_width], float32 or the model's dtype
    eps: float
    gated_inputs: bool = field(init=False, default=False)
    by_tap: Tensor = field(init=False)
    bias: None = field(init=False, default=None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_tap", self.convolution.float().T.contiguous())

    def heads(self, convolved: Tensor, rates: Tensor) -> Heads:
        """See RecurrentWeights."""
        shape = self.shape
        sharing = shape.value_heads // shape.key_heads
        queries, keys, values = grouped(shape, convolved)
        queries, keys = (
            _of_length_one(one).repeat_interleave(sharing, -2) for one in (queries, keys)
        )
        rate, decay = rates.float().chunk(2, -1)
        return Heads(
            queries * shape.key_width**-0.5,
            keys,
            values,
            self.decay * F.softplus(decay + self.offset),
            rate.sigmoid(),
        )

    def step(self, heads: Heads, states: Tensor) -> tuple[Tensor, Tensor]:
        """See RecurrentWeights."""
        queries, keys, values, decays, rates = heads
        states = states * decays.exp()[..., None, None]
        known = torch.einsum("shkv,shk->shv", states, keys)
        learned = (values - known) * rates[..., None]
        states = states + keys[..., None] * learned[..., None, :]
        return torch.einsum("shkv,shk->shv", states, queries), states

    def chunk(self, heads: Heads, state: Tensor) -> tuple[Tensor, Tensor]:
        """See RecurrentWeights."""
        queries, keys, values = (one.transpose(0, 1) for one in heads[:3])
        rates, (since, faded) = heads.rates.T[..., None], between(heads.decays)
        system = rates * (keys @ keys.mT) * faded
        wanted = rates * (values - since.exp() * (keys @ state))
        learned = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
        read = since.exp() * (queries @ state) + (queries @ keys.mT * faded) @ learned
        last = since[:, -1:]
        state = last.exp() * state + (keys * (last - since).exp()).mT @ learned
        return read.transpose(0, 1), state

    def gate_and_norm(self, read: Tensor, mixed: Tensor) -> Tensor:
        """See RecurrentWeights."""
        normed = F.rms_norm(read, read.shape[-1:], self.norm.float(), self.eps)
        gates = F.silu(mixed[:, self.shape.channels :].float())
        return (normed.flatten(1) * gates).to(mixed.dtype)


def _of_length_one(rows: Tensor) -> Tensor:
    return rows * torch.rsqrt(rows.square().sum(-1, keepdim=True) + SMALLEST)
