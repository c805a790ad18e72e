"""Nets that keep a state, with weights at random, and their formulas in float64."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from engine.attention.kv_memory import KvMemory
from engine.attention.paged import Span
from engine.kernels.delta_net import SMALLEST, DeltaWeights
from engine.kernels.mamba import MambaWeights
from engine.kernels.recurrent import RecurrentInputs, RecurrentShape
from engine.kernels.short_convolution import ConvolutionWeights
from tests.fakes.kept_states import LAYER


@dataclass(frozen=True)
class DeltaFormula:
    """A gated delta net."""

    shape: RecurrentShape
    weights: DeltaWeights

    def entering(self, mixed: Tensor, rates: Tensor) -> Tensor:
        """[channels]: what the convolution reads of a token."""
        return mixed[: self.shape.channels]

    def leaving(self, convolved: Tensor) -> Tensor:
        return convolved * convolved.sigmoid()

    def token(self, mixed: Tensor, rates: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """From what is convolved: what is read [value_heads, value_width], and the state."""
        net, read, weights = self.shape, list[Tensor](), self.weights
        offset = rates[net.value_heads :] + weights.offset
        decays = weights.decay * torch.log1p(offset.exp())
        state = state.clone()
        for head, (query, key, value) in enumerate(_heads(net, mixed)):
            query, key = (one / (one.dot(one) + SMALLEST).sqrt() for one in (query, key))
            ours = state[head] * decays[head].exp()
            ours += torch.outer(key, rates[head].sigmoid() * (value - ours.T @ key))
            read.append(ours.T @ query / net.key_width**0.5)
            state[head] = ours
        return torch.stack(read), state

    def gated(self, read: Tensor, gates: Tensor) -> Tensor:
        normed = read / (read.square().mean(-1, keepdim=True) + self.weights.eps).sqrt()
        return (normed * self.weights.norm.double()).flatten() * gates * gates.sigmoid()


@dataclass(frozen=True)
class MambaFormula:
    """Mamba-2."""

    shape: RecurrentShape
    weights: MambaWeights

    def entering(self, mixed: Tensor, rates: Tensor) -> Tensor:
        """See DeltaFormula."""
        return mixed[: self.shape.channels]

    def leaving(self, convolved: Tensor) -> Tensor:
        return convolved * convolved.sigmoid()

    def token(self, mixed: Tensor, rates: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See DeltaFormula."""
        net, read, weights = self.shape, list[Tensor](), self.weights
        steps = torch.log1p((rates + weights.offset).exp())
        state = state.clone()
        for head, (query, key, value) in enumerate(_heads(net, mixed)):
            ours = state[head] * (steps[head] * weights.decay[head]).exp()
            state[head] = ours + torch.outer(key, steps[head] * value)
            read.append(state[head].T @ query + weights.skip[head] * value)
        return torch.stack(read), state

    def gated(self, read: Tensor, gates: Tensor) -> Tensor:
        gated, weights = read.flatten() * gates * gates.sigmoid(), self.weights
        if weights.norm is None:
            return gated
        groups = gated.view(weights.norm_groups, -1)
        normed = groups / (groups.square().mean(-1, keepdim=True) + weights.eps).sqrt()
        return normed.flatten() * weights.norm.double()


@dataclass(frozen=True)
class ConvolutionFormula:
    """A gated short convolution."""

    shape: RecurrentShape
    weights: ConvolutionWeights

    def entering(self, mixed: Tensor, rates: Tensor) -> Tensor:
        """See DeltaFormula."""
        return mixed[: self.shape.channels] * rates

    def leaving(self, convolved: Tensor) -> Tensor:
        return convolved

    def token(self, mixed: Tensor, rates: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See DeltaFormula."""
        return mixed[:, None], state

    def gated(self, read: Tensor, gates: Tensor) -> Tensor:
        return read.flatten() * gates


Formula: TypeAlias = DeltaFormula | MambaFormula | ConvolutionFormula


def delta_net(net: RecurrentShape, dtype: torch.dtype, *, wide: bool = False) -> DeltaFormula:
    """`wide`: its norm is in float32."""
    weights = DeltaWeights(
        net,
        torch.randn(net.channels, net.taps + 1).to(dtype),
        -torch.randn(net.value_heads).exp(),
        torch.randn(net.value_heads),
        (1 + torch.randn(net.value_width) / 4).to(torch.float32 if wide else dtype),
        1e-6,
    )
    return DeltaFormula(net, weights)


def mamba(
    net: RecurrentShape, norm_groups: int | None, dtype: torch.dtype, *, wide: bool = False
) -> MambaFormula:
    """Without `norm_groups` there is no norm. Most steps are between 0.002 and 1."""
    norm = (1 + torch.randn(net.values) / 4).to(torch.float32 if wide else dtype)
    weights = MambaWeights(
        net,
        torch.randn(net.channels, net.taps + 1).to(dtype),
        torch.randn(net.channels),
        -torch.randn(net.value_heads).exp(),
        torch.randn(net.value_heads) - 3,
        torch.randn(net.value_heads),
        None if norm_groups is None else norm,
        norm_groups or 1,
        1e-5,
    )
    return MambaFormula(net, weights)


def convolution(
    channels: int, taps: int, dtype: torch.dtype, *, wide: bool = False
) -> ConvolutionFormula:
    """`wide`: it has a bias."""
    net = RecurrentShape(channels, channels, 0, 1, taps)
    weight, bias = torch.randn(channels, taps + 1).to(dtype), torch.randn(channels)
    return ConvolutionFormula(net, ConvolutionWeights(net, weight, bias if wide else None))


def inputs_of(formula: Formula, tokens: int, dtype: torch.dtype) -> RecurrentInputs:
    """Views of wider rows."""
    net, two = formula.shape, isinstance(formula, DeltaFormula)
    mixed, rates = net.channels + net.values, net.value_heads * (1 + two)
    return RecurrentInputs(
        torch.randn(tokens, mixed + 3).to(dtype)[:, :mixed],
        2 * torch.randn(tokens, rates + 1).to(dtype)[:, :rates],
    )


def one_by_one(
    memory: KvMemory, spans: Sequence[Span], formula: Formula, inputs: RecurrentInputs
) -> Tensor:
    """Token by token; states are changed as well."""
    states, row, read = memory.states(LAYER), 0, list[Tensor]()
    channels, weights = formula.shape.channels, formula.weights
    bias = 0 if weights.bias is None else weights.bias.double()
    for span in spans:
        block, rows = span.state[states.place], slice(row, row + span.length)
        before, state = (one[block].double() for one in (states.inputs, states.memory))
        if not span.start:
            before, state = torch.zeros_like(before), torch.zeros_like(state)
        for mixed, rates in zip(*(one[rows].double() for one in inputs), strict=True):
            before = torch.cat((before, formula.entering(mixed, rates)[None]))
            convolved = (before * weights.convolution.double().T).sum(0) + bias
            one, state = formula.token(formula.leaving(convolved), rates, state)
            read.append(formula.gated(one, mixed[channels:]))
            before = before[1:]
        states.inputs[block], states.memory[block] = before.float(), state.float()
        row += span.length
    return torch.stack(read)


def _heads(net: RecurrentShape, mixed: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Each value head's query, key and value."""
    queries, keys, values = mixed.split((net.keys, net.keys, net.values))
    queries, keys = (one.view(net.key_heads, -1) for one in (queries, keys))
    values = values.view(net.value_heads, -1)
    shared = [head * net.key_heads // net.value_heads for head in range(net.value_heads)]
    return [(queries[key], keys[key], values[head]) for head, key in enumerate(shared)]
