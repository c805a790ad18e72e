"""The layers of a batch that keep a state, by the CPU kernel if there is one, else in torch.

Plain torch works on any device, and is the reference that the kernel is compared with. Tokens
are laid out as for attention (engine/attention/paged.py): first the sequences with one token
each, which torch computes together, then the chunks, each in pieces.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.attention.paged import Span, told
from engine.kernels.cpu.attention import Numbers
from engine.kernels.cpu.native import CpuKernels
from engine.kernels.cpu.recurrent import RecurrentNets
from engine.kernels.delta_net import DeltaWeights
from engine.kernels.mamba import MambaWeights
from engine.kernels.recurrent import (
    LayerStates,
    RecurrentInputs,
    RecurrentWeights,
    convolve,
    entering,
)
from engine.kernels.short_convolution import ConvolutionWeights

TOKENS_AT_ONCE = 64
COMPILED = DeltaWeights | MambaWeights | ConvolutionWeights


class SpanRecurrence:
    """Recurrent layers over some spans, `singles` of one token first.

    Without `kernels` it runs in plain torch.
    """

    def __init__(
        self, kernels: CpuKernels | None, singles: Sequence[Span], chunks: Sequence[Span]
    ) -> None:
        self._singles, self._chunks = singles, chunks
        self._compiled: RecurrentNets | None = None
        if kernels is not None:
            self._compiled = kernels.recurrent_nets(*_told([*singles, *chunks]))

    def renew(self, singles: Sequence[Span]) -> None:
        """Go on with as many other single tokens, without chunks; kernel only."""
        if self._compiled is not None:
            self._compiled.renew(*_told(singles))

    def recurrence(
        self, states: LayerStates, weights: RecurrentWeights, inputs: RecurrentInputs
    ) -> Tensor:
        """See Batch in engine/attention/batch.py."""
        if self._compiled is not None and isinstance(weights, COMPILED):
            return self._compiled.recurrence(states, weights, inputs)
        first, parts = len(self._singles), list[Tensor]()
        if first:
            parts.append(self._step(states, weights, RecurrentInputs(*_rows(inputs, 0, first))))
        for span in self._chunks:
            ours = RecurrentInputs(*_rows(inputs, first, span.length))
            parts.append(_through(span, states, weights, ours))
            first += span.length
        return weights.gate_and_norm(torch.cat(parts), inputs.mixed)

    def _step(
        self, states: LayerStates, weights: RecurrentWeights, inputs: RecurrentInputs
    ) -> Tensor:
        """One token of each single: [singles, value_heads, value_width]."""
        device = inputs.mixed.device
        blocks = torch.tensor([one.state[states.place] for one in self._singles], device=device)
        goes_on = torch.tensor([one.start > 0 for one in self._singles], device=device)
        before = states.inputs[blocks].where(goes_on[:, None, None], 0)
        memory = states.memory[blocks].where(goes_on[:, None, None, None], 0)
        new = entering(weights, inputs)[:, None]
        heads = weights.heads(convolve(weights, before, new)[:, 0], inputs.rates)
        read, memory = weights.step(heads, memory)
        states.memory[blocks] = memory
        states.inputs[blocks] = torch.cat((before[:, 1:], new), 1)
        return read


def _told(spans: Sequence[Span]) -> tuple[Numbers, Numbers]:
    return told(spans, [span.state for span in spans])


def _through(
    span: Span, states: LayerStates, weights: RecurrentWeights, inputs: RecurrentInputs
) -> Tensor:
    """All tokens of a chunk: [tokens, value_heads, value_width]."""
    block = span.state[states.place]
    before, memory = states.inputs[block], states.memory[block]
    if not span.start:
        before, memory = torch.zeros_like(before), torch.zeros_like(memory)
    new = entering(weights, inputs)
    heads = weights.heads(convolve(weights, before, new), inputs.rates)
    parts = list[Tensor]()
    for first in range(0, span.length, TOKENS_AT_ONCE):
        some = type(heads)(*(one[first : first + TOKENS_AT_ONCE] for one in heads))
        read, memory = weights.chunk(some, memory)
        parts.append(read)
    states.memory[block] = memory
    states.inputs[block] = torch.cat((before, new))[span.length :]
    return torch.cat(parts)


def _rows(inputs: RecurrentInputs, first: int, count: int) -> tuple[Tensor, Tensor]:
    mixed, rates = (one[first : first + count] for one in inputs)
    return mixed, rates
