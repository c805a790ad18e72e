"""Sequences whose states lie in blocks full of what is no number, and a gated delta net."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.attention.paged import Span
from engine.attention.recurrence import SpanRecurrence
from engine.kernels.contract import Chunks, Contexts, RecurrentIo
from engine.kernels.delta_net import DeltaWeights
from engine.kernels.gpu.twins import TorchKernels
from engine.kernels.recurrent import LayerStates, RecurrentInputs, RecurrentShape

BLOCKS, PLACE, NOWHERE = 24, 1, 1 << 30
FLOATS = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
SHAPES = {
    "each its key": RecurrentShape(2, 2, 16, 16, 3),
    "shared keys": RecurrentShape(2, 6, 16, 32, 3),
    "wide keys": RecurrentShape(1, 2, 32, 16, 1),
    "long convolution": RecurrentShape(1, 1, 16, 16, 4),
}


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """Sequences that have computed `starts` tokens, and compute `counts` more; a count of 0 is
    padding. `spare` rows lie behind them all.
    """

    weights: DeltaWeights
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

    def right(self, *, chunks: bool) -> Tensor:
        """[rows, values] as plain torch has it, of what is no padding."""
        ours = [span for span in self.spans if span.length]
        real = torch.tensor([span.length > 0 for span in self.spans])
        rows = torch.arange(len(self.inputs.mixed) - self.spare)
        rows = rows if chunks else rows[real]
        some = RecurrentInputs(*(one[rows.to(one.device)] for one in self.inputs))
        batch = ((), ours) if chunks else (ours, ())
        return SpanRecurrence(None, *batch).recurrence(self.states, self.weights, some)


def make_case(
    shape: RecurrentShape,
    starts: Sequence[int],
    counts: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    *,
    spare: int = 0,
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
    inputs = _inputs(shape, rows, dtype, device)
    inputs.mixed[rows - spare :], inputs.rates[rows - spare :] = torch.nan, torch.nan
    return Case(
        _weights(shape, dtype, device),
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


def _weights(shape: RecurrentShape, dtype: torch.dtype, device: torch.device) -> DeltaWeights:
    sizes = shape.channels, shape.taps + 1
    return DeltaWeights(
        shape,
        torch.randn(sizes, device=device).to(dtype),
        -torch.rand(shape.value_heads, device=device),
        torch.randn(shape.value_heads, device=device),
        torch.rand(shape.value_width, device=device).to(dtype) + 0.5,
        1e-6,
    )


def _inputs(
    shape: RecurrentShape, rows: int, dtype: torch.dtype, device: torch.device
) -> RecurrentInputs:
    """Rows that something lies between."""
    mixed = torch.randn(rows, shape.channels + shape.values + 16, device=device).to(dtype)
    rates = torch.randn(rows, 2 * shape.value_heads + 1, device=device).to(dtype)
    return RecurrentInputs(mixed[:, :-16], rates[:, :-1])
