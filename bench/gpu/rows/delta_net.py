"""Gated delta nets: steps of one token for each sequence, and chunks of prompts."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from bench.gpu.row import Prepared, Row
from bench.gpu.shapes import Shape
from engine.kernels.contract import Chunks, Contexts, RecurrentIo
from engine.kernels.delta_net import DeltaWeights
from engine.kernels.gpu.delta_net import delta_net_step, step_floor
from engine.kernels.gpu.delta_net_chunks import chunks_floor, delta_net_chunks
from engine.kernels.gpu.recurrent_twins import chunks_twin, step_twin
from engine.kernels.recurrent import LayerStates, RecurrentInputs, RecurrentShape

EPS = 1e-6
BEFORE = 100  # tokens that each sequence has behind it


def rows(shape: Shape) -> Iterator[Row]:
    """For shapes that have the sizes of one: a step of every batch, and prompts."""
    if shape.delta is None or shape.quantization is not None:
        return
    for batch in shape.batches:
        make = partial(_step, shape.delta, batch, shape.dtype)
        yield Row("gated delta net, a step", f"batch {batch}", make)
    for count, tokens in ((1, shape.prefill), (1, shape.prefill // 4), (4, shape.prefill)):
        sizes = count, tokens // count
        make = partial(_chunks, shape.delta, sizes, shape.dtype)
        yield Row("gated delta net, chunks", f"{count} of {tokens // count} tokens", make)


class _Given(NamedTuple):
    inputs: RecurrentInputs
    states: LayerStates
    contexts: Contexts
    weights: DeltaWeights


def _given(
    shape: RecurrentShape, sequences: int, length: int, dtype: torch.dtype, device: torch.device
) -> _Given:
    new = partial(torch.randn, dtype=dtype, device=device)
    tokens, heads = sequences * length, shape.value_heads
    numbers = torch.randn(sequences, shape.numbers, device=device)
    tables = torch.randperm(sequences, device=device).int()[:, None]
    weights = DeltaWeights(
        shape,
        new(shape.channels, shape.taps + 1),
        -torch.rand(heads, device=device),
        torch.randn(heads, device=device),
        new(shape.value_width),
        EPS,
    )
    return _Given(
        RecurrentInputs(new(tokens, shape.channels + shape.values), new(tokens, 2 * heads)),
        _states(shape, numbers),
        Contexts(tables, torch.full_like(tables[:, 0], BEFORE + length)),
        weights,
    )


def _states(shape: RecurrentShape, numbers: Tensor) -> LayerStates:
    memory, last = numbers.split((shape.keys_times_values, shape.taps * shape.channels), 1)
    heads = shape.value_heads, shape.key_width, shape.value_width
    return LayerStates(
        memory.unflatten(1, heads), last.unflatten(1, (shape.taps, shape.channels)), 0
    )


def _step(
    shape: RecurrentShape, batch: int, dtype: torch.dtype, device: torch.device
) -> Prepared:
    given = _given(shape, batch, 1, dtype, device)
    apart = _apart(given)
    io = RecurrentIo(given.inputs, given.inputs.mixed.new_empty(batch, shape.values))

    def twin() -> Tensor:
        step_twin(io, apart, given.contexts, given.weights)
        return io.output

    floor = step_floor(shape, batch, dtype.itemsize)
    return Prepared(partial(delta_net_step, *given), floor, twin, {"torch": lambda: twin})


def _chunks(
    shape: RecurrentShape, sizes: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> Prepared:
    count, length = sizes
    given = _given(shape, count, length, dtype, device)
    inputs, states, contexts, weights = given
    firsts = torch.arange(0, count * length + 1, length, dtype=torch.int32, device=device)
    chunks, apart = Chunks(firsts, length), _apart(given)
    io = RecurrentIo(inputs, inputs.mixed.new_empty(count * length, shape.values))

    def twin() -> Tensor:
        chunks_twin(io, apart, contexts, chunks, weights)
        return io.output

    run = partial(delta_net_chunks, inputs, states, contexts, chunks, weights)
    floor = chunks_floor(shape, count, count * length, dtype.itemsize)
    return Prepared(run, floor, twin, {"torch": lambda: twin})


def _apart(given: _Given) -> LayerStates:
    """The same states, for the twin: a call changes them."""
    memory, last, place = given.states
    return LayerStates(memory.clone(), last.clone(), place)
