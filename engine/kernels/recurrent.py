"""What layers have in common that keep a state of fixed size in place of keys and values.

Each value head has a state S [key_width, value_width]. A token with query q, key k, value v
fades it, writes k times something of v to it, and reads S^T q. Queries, keys and values are the
outputs of a causal convolution over each channel, and silu. Value heads share queries and keys
in groups, as in grouped-query attention. What was read is normed and multiplied by silu of a
gate. The nets differ in what they write: engine/kernels/delta_net.py, engine/kernels/mamba.py.
A third one (engine/kernels/short_convolution.py) keeps nothing but the convolution's inputs,
and has gates in place of silu.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RecurrentShape:
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


class RecurrentInputs(NamedTuple):
    """The outputs of a layer's products, for all tokens of a batch."""

    mixed: Tensor  # [tokens, channels + values]: queries, keys, values, gates
    rates: Tensor  # [tokens, rates of the net]


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
    decays and rates [.., value_heads], all float32. A token of zeros changes no state.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    decays: Tensor
    rates: Tensor


class RecurrentWeights(Protocol):
    """What a layer has beside its products, and what it computes between them."""

    @property
    def shape(self) -> RecurrentShape:
        """The sizes."""

    @property
    def by_tap(self) -> Tensor:
        """The convolution's weights, [taps + 1, channels] float32, the newest token last."""

    @property
    def bias(self) -> Tensor | None:
        """The convolution's, [channels] float32."""

    @property
    def gated_inputs(self) -> bool:
        """Whether rates [.., channels] are gates of what enters the convolution, which has no
        silu behind it then.
        """

    def heads(self, convolved: Tensor, rates: Tensor) -> Heads:
        """Cut [.., channels] and [.., rates of the net] into heads."""

    def step(self, heads: Heads, states: Tensor) -> tuple[Tensor, Tensor]:
        """One token of each sequence: what it reads [sequences, value_heads, value_width], and
        the new states [sequences, value_heads, key_width, value_width].
        """

    def chunk(self, heads: Heads, state: Tensor) -> tuple[Tensor, Tensor]:
        """Many tokens of one sequence, likewise: [tokens, value_heads, value_width], and the
        new state [value_heads, key_width, value_width].
        """

    def gate_and_norm(self, read: Tensor, mixed: Tensor) -> Tensor:
        """[tokens, value_heads, value_width] float32 to [tokens, values], in the dtype of
        `mixed`, whose last columns are the gates.
        """


def entering(weights: RecurrentWeights, inputs: RecurrentInputs) -> Tensor:
    """What enters the convolution: [tokens, channels] float32."""
    numbers = inputs.mixed[:, : weights.shape.channels].float()
    return numbers * inputs.rates.float() if weights.gated_inputs else numbers


def convolve(weights: RecurrentWeights, before: Tensor, inputs: Tensor) -> Tensor:
    """[.., taps, channels] and [.., tokens, channels] to the latter, behind silu if the net
    has one; all in float32.
    """
    whole = torch.cat((before, inputs), -2)
    windows = whole.unfold(-2, weights.shape.taps + 1, 1)  # [.., tokens, channels, taps + 1]
    total = (windows * weights.by_tap.T).sum(-1)
    total = total if weights.bias is None else total + weights.bias
    return total if weights.gated_inputs else F.silu(total)


def grouped(shape: RecurrentShape, convolved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys [.., key_heads, key_width], values [.., value_heads, value_width]."""
    queries, keys, values = convolved.split((shape.keys, shape.keys, shape.values), -1)
    heads = shape.key_heads, shape.key_width
    return (
        queries.unflatten(-1, heads),
        keys.unflatten(-1, heads),
        values.unflatten(-1, (shape.value_heads, shape.value_width)),
    )


def between(decays: Tensor) -> tuple[Tensor, Tensor]:
    """How much a state fades since a chunk's begin [heads, tokens, 1], in logarithms, and from
    token to token [heads, tokens, tokens], for log decays [tokens, heads].
    """
    since = decays.cumsum(0).T[..., None]
    return since, (since - since.mT).tril().exp().tril()
