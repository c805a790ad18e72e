"""Layers that keep a state: steps of one token for each sequence, and chunks of prompts."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from bench.gpu.row import Prepared, Row
from bench.gpu.shapes import Shape
from engine.kernels.contract import Chunks, Contexts, RecurrentIo
from engine.kernels.delta_net import DeltaWeights
from engine.kernels.floor import Floor
from engine.kernels.gpu import delta_net, mamba, mamba_chunks, short_convolution
from engine.kernels.gpu import delta_net_chunks as delta_chunks
from engine.kernels.gpu.recurrent_twins import chunks_twin, step_twin
from engine.kernels.mamba import MambaWeights
from engine.kernels.recurrent import LayerStates, RecurrentInputs, RecurrentShape
from engine.kernels.short_convolution import ConvolutionWeights

EPS = 1e-6
BEFORE = 100  # tokens that each sequence has behind it


Weights = DeltaWeights | MambaWeights | ConvolutionWeights


class _Net(NamedTuple):
    """What one kind of layers has; its kernels are called with all of `_Given`."""

    name: str
    weights: Callable[[RecurrentShape, torch.dtype, torch.device], Weights]
    rates: int  # of a value head
    step: Callable[..., object]
    step_floor: Callable[[RecurrentShape, int, int], Floor]
    chunks: Callable[..., object]
    chunks_floor: Callable[[RecurrentShape, int, int, int], Floor]


def rows(shape: Shape) -> Iterator[Row]:
    """For shapes that have the sizes of one: a step of every batch, and prompts."""
    if shape.quantization is None:
        sizes_of = (DELTA, shape.delta), (MAMBA, shape.mamba), (CONVOLUTION, shape.convolution)
        for net, sizes in sizes_of:
            if sizes is not None:
                yield from _rows(shape, net, sizes)


def _rows(shape: Shape, net: _Net, sizes: RecurrentShape) -> Iterator[Row]:
    for batch in shape.batches:
        make = partial(_step, net, sizes, batch, shape.dtype)
        yield Row(f"{net.name}, a step", f"batch {batch}", make)
    for count, tokens in ((1, shape.prefill), (1, shape.prefill // 4), (4, shape.prefill)):
        make = partial(_chunks, net, sizes, (count, tokens // count), shape.dtype)
        yield Row(f"{net.name}, chunks", f"{count} of {tokens // count} tokens", make)


class _Given(NamedTuple):
    inputs: RecurrentInputs
    states: LayerStates
    contexts: Contexts
    weights: Weights


def _given(
    net: _Net, shape: RecurrentShape, sizes: tuple[int, int], dtype: torch.dtype,
    device: torch.device,
) -> _Given:  # fmt: skip
    """For so many sequences, of as many tokens each."""
    sequences, length = sizes
    new, tokens = partial(torch.randn, dtype=dtype, device=device), sequences * length
    numbers = torch.randn(sequences, shape.numbers, device=device)
    tables = torch.randperm(sequences, device=device).int()[:, None]
    mixed = new(tokens, shape.channels + shape.values)
    return _Given(
        RecurrentInputs(mixed, new(tokens, net.rates * shape.value_heads)),
        _states(shape, numbers),
        Contexts(tables, torch.full_like(tables[:, 0], BEFORE + length)),
        net.weights(shape, dtype, device),
    )


def _states(shape: RecurrentShape, numbers: Tensor) -> LayerStates:
    memory, last = numbers.split((shape.keys_times_values, shape.taps * shape.channels), 1)
    heads = shape.value_heads, shape.key_width, shape.value_width
    return LayerStates(
        memory.unflatten(1, heads), last.unflatten(1, (shape.taps, shape.channels)), 0
    )


def _delta(shape: RecurrentShape, dtype: torch.dtype, device: torch.device) -> DeltaWeights:
    new = partial(torch.randn, device=device)
    return DeltaWeights(
        shape,
        new(shape.channels, shape.taps + 1, dtype=dtype),
        -torch.rand(shape.value_heads, device=device),
        new(shape.value_heads),
        new(shape.value_width, dtype=dtype),
        EPS,
    )


def _mamba(shape: RecurrentShape, dtype: torch.dtype, device: torch.device) -> MambaWeights:
    """Normed by as many groups as there are key heads."""
    new, heads = partial(torch.randn, device=device), shape.value_heads
    return MambaWeights(
        shape,
        new(shape.channels, shape.taps + 1, dtype=dtype),
        new(shape.channels),
        -torch.rand(heads, device=device),
        new(heads),
        new(heads),
        new(shape.values, dtype=dtype),
        shape.key_heads,
        EPS,
    )


def _convolution(
    shape: RecurrentShape, dtype: torch.dtype, device: torch.device
) -> ConvolutionWeights:
    weight = torch.randn(shape.channels, shape.taps + 1, device=device, dtype=dtype)
    return ConvolutionWeights(shape, weight, None)


def _step(
    net: _Net, shape: RecurrentShape, batch: int, dtype: torch.dtype, device: torch.device
) -> Prepared:
    given = _given(net, shape, (batch, 1), dtype, device)
    apart = _apart(given)
    io = RecurrentIo(given.inputs, given.inputs.mixed.new_empty(batch, shape.values))

    def twin() -> Tensor:
        step_twin(io, apart, given.contexts, given.weights)
        return io.output

    floor = net.step_floor(shape, batch, dtype.itemsize)
    return Prepared(partial(net.step, *given), floor, twin, {"torch": lambda: twin})


def _chunks(
    net: _Net, shape: RecurrentShape, sizes: tuple[int, int], dtype: torch.dtype,
    device: torch.device,
) -> Prepared:  # fmt: skip
    count, length = sizes
    given = _given(net, shape, sizes, dtype, device)
    inputs, states, contexts, weights = given
    firsts = torch.arange(0, count * length + 1, length, dtype=torch.int32, device=device)
    chunks, apart = Chunks(firsts, length), _apart(given)
    io = RecurrentIo(inputs, inputs.mixed.new_empty(count * length, shape.values))

    def twin() -> Tensor:
        chunks_twin(io, apart, contexts, chunks, weights)
        return io.output

    run = partial(net.chunks, inputs, states, contexts, chunks, weights)
    floor = net.chunks_floor(shape, count, count * length, dtype.itemsize)
    return Prepared(run, floor, twin, {"torch": lambda: twin})


def _apart(given: _Given) -> LayerStates:
    """The same states, for the twin: a call changes them."""
    memory, last, place = given.states
    return LayerStates(memory.clone(), last.clone(), place)


DELTA = _Net(
    "gated delta net", _delta, 2, delta_net.delta_net_step, delta_net.step_floor,
    delta_chunks.delta_net_chunks, delta_chunks.chunks_floor,
)  # fmt: skip
MAMBA = _Net(
    "Mamba-2", _mamba, 1, mamba.mamba_step, mamba.step_floor,
    mamba_chunks.mamba_chunks, mamba_chunks.chunks_floor,
)  # fmt: skip
CONVOLUTION = _Net(
    "short convolution", _convolution, 1, short_convolution.convolution_step,
    short_convolution.step_floor, short_convolution.convolution_chunks,
    short_convolution.chunks_floor,
)  # fmt: skip
