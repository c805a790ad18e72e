"""The gated delta net (Yang, Kautz and Hatamizadeh 2025): a layer that has a state of fixed
size in place of keys and values.

Each value head has a state S [key_width, value_width]. A token with query q, key k, value v,
decay a and rate b changes and reads it:

    S = a S          u = b (v - S^T k)          S = S + k u^T          read = S^T q

Queries, keys and values are the outputs of a causal convolution over each channel, and silu.
Queries and keys are scaled to length 1, and queries divided by the root of their width. Value
heads share keys in groups, as in grouped-query attention. What was read is normed by head and
multiplied by silu of a gate.

`chunk` computes many tokens at once, as the paper's section 3.3 does: the u of all of them
solve one triangular system. These are the twins of the kernels.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor

SMALLEST = 1e-6  # added to squared lengths of queries and keys


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """The sizes of one layer; its convolution reads `taps` tokens before each."""

    key_heads: int
    value_heads: int
    key_width: int
    value_width: int
    taps: int

    @property
    def keys(self) -> int:
        """Channels of all keys, and of all queries."""
        return self.key_heads * self.key_width

    @property
    def values(self) -> int:
        """Channels of all values, of all gates, and of the output."""
        return self.value_heads * self.value_width

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, then keys, then values."""
        return 2 * self.keys + self.values

    @property
    def numbers(self) -> int:
        """Numbers that a sequence keeps: the states of all heads, and the last inputs."""
        return self.keys_times_values + self.taps * self.channels

    @property
    def keys_times_values(self) -> int:
        """Numbers in the states of all heads."""
        return self.value_heads * self.key_width * self.value_width


@dataclass(frozen=True, slots=True, eq=False)
class DeltaWeights:
    """What a layer has beside its products; `convolution` in float32 as well, tap by tap.

    A token's decay is exp(`decay` * softplus(a + `offset`)).
    """

    shape: DeltaShape
    convolution: Tensor  # [channels, taps + 1], the newest token last
    decay: Tensor  # [value_heads] float32, negative
    offset: Tensor  # [value_heads] float32
    norm: Tensor  # [value_width], float32 or the model's dtype
    eps: float
    by_tap: Tensor = field(init=False)  # [taps + 1, channels] float32

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_tap", self.convolution.float().T.contiguous())


class DeltaInputs(NamedTuple):
    """The outputs of a layer's first two products, for all tokens of a batch."""

    mixed: Tensor  # [tokens, channels + values]: queries, keys, values, gates
    rates: Tensor  # [tokens, 2 * value_heads]: b before its sigmoid, then a


class LayerStates(NamedTuple):
    """What all sequences keep for one layer, by block: views of KV memory, in float32.

    It lies in the block that is number `place` of a sequence's state blocks. A sequence that
    begins has zeros for it, whatever its block has.
    """

    memory: Tensor  # [blocks, value_heads, key_width, value_width]
    inputs: Tensor  # [blocks, taps, channels], the newest token last
    place: int


class Heads(NamedTuple):
    """Queries and keys [.., value_heads, key_width], values [.., value_heads, value_width], log
    decays and rates [.., value_heads], all float32.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    decays: Tensor
    rates: Tensor


def convolve(weights: DeltaWeights, before: Tensor, inputs: Tensor) -> Tensor:
    """[.., taps, channels] and [.., tokens, channels] to the latter, behind silu; float32."""
    whole = torch.cat((before, inputs.float()), -2)
    windows = whole.unfold(-2, weights.shape.taps + 1, 1)  # [.., tokens, channels, taps + 1]
    return F.silu((windows * weights.by_tap.T).sum(-1))


def heads_of(weights: DeltaWeights, convolved: Tensor, rates: Tensor) -> Heads:
    """Cut [.., channels] and [.., 2 * value_heads] into heads."""
    shape = weights.shape
    queries, keys, values = convolved.split((shape.keys, shape.keys, shape.values), -1)
    sharing = shape.value_heads // shape.key_heads
    queries, keys = (
        _of_length_one(one.unflatten(-1, (shape.key_heads, -1))).repeat_interleave(sharing, -2)
        for one in (queries, keys)
    )
    rate, decay = rates.float().chunk(2, -1)
    return Heads(
        queries * shape.key_width**-0.5,
        keys,
        values.unflatten(-1, (shape.value_heads, -1)),
        weights.decay * F.softplus(decay + weights.offset),
        rate.sigmoid(),
    )


def step(heads: Heads, states: Tensor) -> tuple[Tensor, Tensor]:
    """One token of each sequence: what it reads [sequences, value_heads, value_width], and the
    new states [sequences, value_heads, key_width, value_width].
    """
    queries, keys, values, decays, rates = heads
    states = states * decays.exp()[..., None, None]
    known = torch.einsum("shkv,shk->shv", states, keys)
    learned = (values - known) * rates[..., None]
    states = states + keys[..., None] * learned[..., None, :]
    return torch.einsum("shkv,shk->shv", states, queries), states


def chunk(heads: Heads, state: Tensor) -> tuple[Tensor, Tensor]:
    """Many tokens of one sequence, likewise: [tokens, value_heads, value_width], and the new
    state [value_heads, key_width, value_width].
    """
    queries, keys, values = (one.transpose(0, 1) for one in heads[:3])  # [heads, tokens, ..]
    rates, since = heads.rates.T[..., None], heads.decays.cumsum(0).T[..., None]
    between = (since - since.mT).tril().exp().tril()  # [heads, tokens, tokens] decay
    system = rates * (keys @ keys.mT) * between
    wanted = rates * (values - since.exp() * (keys @ state))
    learned = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    read = since.exp() * (queries @ state) + (queries @ keys.mT * between) @ learned
    last = since[:, -1:]
    state = last.exp() * state + (keys * (last - since).exp()).mT @ learned
    return read.transpose(0, 1), state


def gate_and_norm(weights: DeltaWeights, read: Tensor, mixed: Tensor) -> Tensor:
    """[tokens, value_heads, value_width] float32 to [tokens, values], in the dtype of `mixed`,
    whose last columns are the gates.
    """
    normed = F.rms_norm(read, read.shape[-1:], weights.norm.float(), weights.eps)
    gates = F.silu(mixed[:, weights.shape.channels :].float())
    return (normed.flatten(1) * gates).to(mixed.dtype)


def _of_length_one(rows: Tensor) -> Tensor:
    return rows * torch.rsqrt(rows.square().sum(-1, keepdim=True) + SMALLEST)
