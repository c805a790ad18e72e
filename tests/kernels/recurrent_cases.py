"""Sequences whose states lie in blocks full of what is no number, and nets that change them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.attention.paged import Span
from engine.attention.recurrence import SpanRecurrence
from engine.kernels.contract import Chunks, Contexts, RecurrentIo
from engine.kernels.delta_net import DeltaWeights
from engine.kernels.gpu.twins import TorchKernels
from engine.kernels.mamba import MambaWeights
from engine.kernels.recurrent import (
    LayerStates,
    RecurrentInputs,
    RecurrentShape,
    RecurrentWeights,
)
from engine.kernels.short_convolution import ConvolutionWeights
from tests.kernels.attention_cases import distance

BLOCKS, PLACE, NOWHERE = 24, 1, 1 << 30
FLOATS = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
NOT_NORMED = 2.0  # times that: the interpreter cuts bfloat16 off where a GPU rounds
SHAPES = {
    "each its key": RecurrentShape(2, 2, 16, 16, 3),
    "shared keys": RecurrentShape(2, 6, 16, 32, 3),
    "wide keys": RecurrentShape(1, 2, 32, 16, 1),
    "long convolution": RecurrentShape(1, 1, 16, 16, 4),
}


Net = Callable[[RecurrentShape, torch.dtype, torch.device], RecurrentWeights]


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """Sequences that have computed `starts` tokens, and compute `counts` more; a count of 0 is
    padding. `spare` rows lie behind them all.
    """

    weights: RecurrentWeights
    inputs: RecurrentInputs
    states: LayerStates
    tables: Tensor  # [sequences, 3] int32
    spans: Sequence[Span]
    spare: int = 0

    @property
    def contexts(self) -> Contexts:
        lengths = [span.start + span.length for span in self.spans]
        return Contexts(self.tables, torch.tensor(lengths).int().to(self.tables.device))

    @property
    def chunks(self) -> Chunks:
        counts = torch.tensor([0, *(span.length for span in self.spans)])
        longest = max(span.length for span in self.spans)
        return Chunks(counts.cumsum(0).int().to(self.tables.device), longest)

    @property
    def tolerance(self) -> float:
        """Of what it answers, and of states."""
        whole = TOLERANCE[self.inputs.mixed.dtype]
        return whole if isinstance(self.weights, DeltaWeights) else NOT_NORMED * whole

    def copied(self) -> "Case":
        """With states of its own, which lie as those do."""
        numbers = self.states.memory._base
        assert numbers is not None
        memory, inputs = (_like(one, numbers.clone()) for one in self.states[:2])
        return replace(self, states=LayerStates(memory, inputs, PLACE))

    def answer(self, kernels: TorchKernels, *, chunks: bool) -> Tensor:
        """[rows, values], in a tensor full of what is no number."""
        rows = len(self.inputs.mixed)
        output = self.inputs.mixed.new_full((rows, self.weights.shape.values), torch.nan)
        io, given = RecurrentIo(self.inputs, output), (self.states, self.contexts)
        if chunks:
            kernels.recurrent_chunks(io, *given, self.chunks, self.weights)
        else:
            kernels.recurrent_step(io, *given, self.weights)
        return output

    def part(self, begin: int, end: int) -> "Case":
        """These tokens of its only sequence, over the same states."""
        (span,) = self.spans
        span = replace(span, start=span.start + begin, length=end - begin)
        return replace(
            self,
            inputs=RecurrentInputs(*(one[begin:end] for one in self.inputs)),
            spans=[span],
        )

    def right(self, *, chunks: bool) -> Tensor:
        """[rows, values] as plain torch has it, of what is no padding."""
        ours = [span for span in self.spans if span.length]
        real = torch.tensor([span.length > 0 for span in self.spans])
        rows = torch.arange(len(self.inputs.mixed) - self.spare)
        rows = rows if chunks else rows[real]
        some = RecurrentInputs(*(one[rows.to(one.device)] for one in self.inputs))
        batch = ((), ours) if chunks else (ours, ())
        return SpanRecurrence(None, *batch).recurrence(self.states, self.weights, some)


def delta_weights(
    shape: RecurrentShape, dtype: torch.dtype, device: torch.device
) -> DeltaWeights:
    """A gated delta net's."""
    sizes = shape.channels, shape.taps + 1
    return DeltaWeights(
        shape,
        torch.randn(sizes, device=device).to(dtype),
        -torch.rand(shape.value_heads, device=device),
        torch.randn(shape.value_heads, device=device),
        torch.rand(shape.value_width, device=device).to(dtype) + 0.5,
        1e-6,
    )


def mamba_weights(
    shape: RecurrentShape, dtype: torch.dtype, device: torch.device, groups: int = 1
) -> MambaWeights:
    """A Mamba-2 layer's, with a norm by so many groups; 0: without one."""
    heads, channels = shape.value_heads, shape.channels
    return MambaWeights(
        shape,
        torch.randn(channels, shape.taps + 1, device=device).to(dtype),
        torch.randn(channels, device=device),
        -4 * torch.rand(heads, device=device),
        torch.randn(heads, device=device),
        torch.randn(heads, device=device),
        torch.rand(shape.values, device=device).to(dtype) + 0.5 if groups else None,
        groups,
        1e-6,
    )


def convolution_weights(
    shape: RecurrentShape, dtype: torch.dtype, device: torch.device, *, bias: bool = False
) -> ConvolutionWeights:
    """A gated short convolution's."""
    weight = torch.randn(shape.channels, shape.taps + 1, device=device).to(dtype)
    added = torch.randn(shape.channels, device=device) if bias else None
    return ConvolutionWeights(shape, weight, added)


def check(case: Case, kernels: TorchKernels, *, chunks: bool) -> None:
    """Answers, states and last inputs are plain torch's; all else is as it was."""
    right = case.copied()
    expected = right.right(chunks=chunks)
    answer = case.answer(kernels, chunks=chunks)
    rows = torch.ones(len(answer), dtype=torch.bool)
    rows[len(rows) - case.spare :] = False
    if not chunks:
        rows = torch.tensor([span.length > 0 for span in case.spans])
    rows = rows.to(answer.device)
    assert distance(answer[rows], expected.double().cpu()) < case.tolerance
    assert not answer[~rows].any()
    check_states(case, right)


def check_states(case: Case, right: Case) -> None:
    """See `check`."""
    memory, theirs = case.states.memory, right.states.memory
    assert torch.equal(memory.isnan(), theirs.isnan())
    if memory.numel():
        exact = theirs.nan_to_num().double().cpu()
        assert distance(memory.nan_to_num(), exact) < case.tolerance
    torch.testing.assert_close(
        case.states.inputs, right.states.inputs, rtol=0, atol=0, equal_nan=True
    )


def make_case(
    shape: RecurrentShape,
    starts: Sequence[int],
    counts: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    *,
    spare: int = 0,
    net: Net = delta_weights,
) -> Case:
    """Random. A step has a row for padding, too; what a table says there is nowhere."""
    torch.manual_seed(5)
    blocks = torch.randperm(BLOCKS)[: len(starts)].tolist()
    spans = [
        Span(start if count else 0, count, (), None, (NOWHERE, block, NOWHERE))
        for start, count, block in zip(starts, counts, blocks, strict=True)
    ]
    told = [span.state if span.length else (NOWHERE,) * 3 for span in spans]
    states = _states(shape, device)
    for span in spans:
        if span.length and span.start:
            states.memory[span.state[PLACE]] = torch.randn_like(states.memory[0])
            states.inputs[span.state[PLACE]] = torch.randn_like(states.inputs[0])
    rows = spare + (len(counts) if max(counts) == 1 else sum(counts))
    weights = net(shape, dtype, device)
    inputs = _inputs(weights, rows, dtype, device)
    inputs.mixed[rows - spare :], inputs.rates[rows - spare :] = torch.nan, torch.nan
    return Case(
        weights,
        inputs,
        states,
        torch.tensor(told, dtype=torch.int32, device=device),
        spans,
        spare,
    )


def _states(shape: RecurrentShape, device: torch.device) -> LayerStates:
    """Behind something else in each block, and before something else."""
    numbers = torch.full((BLOCKS, 8 + shape.numbers + 4), torch.nan, device=device)
    ours = numbers[:, 8 : 8 + shape.numbers]
    memory, inputs = ours.split((shape.keys_times_values, shape.taps * shape.channels), 1)
    sizes = shape.value_heads, shape.key_width, shape.value_width
    return LayerStates(
        memory.unflatten(1, sizes), inputs.unflatten(1, (shape.taps, shape.channels)), PLACE
    )


def _like(one: Tensor, numbers: Tensor) -> Tensor:
    return numbers.as_strided(one.shape, one.stride(), one.storage_offset())


def _inputs(
    weights: RecurrentWeights, rows: int, dtype: torch.dtype, device: torch.device
) -> RecurrentInputs:
    """Rows that something lies between."""
    shape, of_rates = weights.shape, 2 if isinstance(weights, DeltaWeights) else 1
    mixed = torch.randn(rows, shape.channels + shape.values + 16, device=device).to(dtype)
    rates = torch.randn(rows, of_rates * shape.value_heads + 1, device=device).to(dtype)
    return RecurrentInputs(mixed[:, :-16], rates[:, :-1])
