"""Gated short convolutions (LFM2): a step of one token of each sequence, or chunks of prompts.

Channels share nothing, so a program has some of them. A step is one launch: what entered the
convolution last is read and moved on by a token. Chunks are two: programs of some tokens each
read what entered before them from the inputs, or from the state if it is of an earlier step,
and once all have, the state is changed. Nothing is read of the state of a sequence that begins.

Twin: engine/kernels/short_convolution.py. Floors: `step_floor`, `chunks_floor`.
"""

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.contract import Chunks, Contexts
from engine.kernels.floor import Floor
from engine.kernels.gpu.chunk_tiles import place_of, tiles_of
from engine.kernels.gpu.overlapping import launch_dependents, pdl_options, wait_for_previous
from engine.kernels.gpu.paged_call import power_of_two
from engine.kernels.gpu.recurrent_call import RecurrentCall
from engine.kernels.gpu.recurrent_parts import keep_last_inputs
from engine.kernels.recurrent import LayerStates, RecurrentInputs, RecurrentShape
from engine.kernels.short_convolution import ConvolutionWeights

WIDEST = 256  # channels of a program
NUMBERS = 4096  # of a program, that the convolution reads: 32 registers of each thread
TOKENS, CHANNELS_OF_TOKENS = 16, 128  # of a program


def convolution_step(
    inputs: RecurrentInputs,
    states: LayerStates,
    contexts: Contexts,
    weights: ConvolutionWeights,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """[S, channels] of the last tokens of S sequences, whose states are changed.

    Arguments are as in `mamba_step`, rates [S, channels]. Raises ValueError for what does not
    fit together.
    """
    call, shape = RecurrentCall.of(inputs, states, contexts, weights), weights.shape
    output, sequences = call.of_steps(inputs, contexts, out), len(contexts.tables)
    if not sequences:
        return output
    mixed_stride, rates_stride, tables_stride, _, inputs_stride = call.strides
    window = power_of_two(shape.taps + 1)
    width = min(WIDEST, NUMBERS // window)
    _step[triton.cdiv(shape.channels, width), sequences](
        *inputs, *contexts, states.inputs, weights.convolution, weights.bias, output,
        states.place, mixed_stride, rates_stride, tables_stride, inputs_stride,
        CHANNELS=shape.channels, TAPS=shape.taps, WINDOW=window, WIDTH=width, num_warps=4,
        **pdl_options(),
    )  # fmt: skip
    return output


def convolution_chunks(
    inputs: RecurrentInputs,
    states: LayerStates,
    contexts: Contexts,
    chunks: Chunks,
    weights: ConvolutionWeights,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """[T, channels] of the last tokens of S sequences, whose states are changed.

    Rows are as in `mamba_chunks`, and all else as in `convolution_step`.
    """
    call, shape = RecurrentCall.of(inputs, states, contexts, weights), weights.shape
    output, firsts = call.of_chunks(inputs, contexts, chunks, out), chunks.firsts
    tokens, sequences = len(output), len(contexts.tables)
    if not tokens or not sequences:
        return output
    mixed_stride, rates_stride, tables_stride, _, inputs_stride = call.strides
    strides = mixed_stride, rates_stride, tables_stride, inputs_stride
    parts = triton.cdiv(shape.channels, CHANNELS_OF_TOKENS)
    _convolve[tiles_of(tokens, sequences, TOKENS), parts](
        *inputs, *contexts, firsts, states.inputs, weights.convolution, weights.bias, output,
        tokens, sequences, states.place, *strides,
        CHANNELS=shape.channels, TAPS=shape.taps, PIECE=TOKENS, WIDTH=CHANNELS_OF_TOKENS,
        num_warps=4,
    )  # fmt: skip
    keep_last_inputs(inputs.mixed, states, contexts, firsts, shape, inputs.rates)
    return output


def step_floor(shape: RecurrentShape, sequences: int, itemsize: int) -> Floor:
    """States are read and written once; inputs are read and outputs written in numbers of
    `itemsize` bytes.
    """
    moved = 2 * 4 * shape.numbers + 4 * shape.channels * itemsize
    weights = itemsize * (shape.taps + 1) * shape.channels
    worked = (2 * shape.taps + 4) * shape.channels
    return Floor(sequences * moved + weights, operations=sequences * worked)


def chunks_floor(shape: RecurrentShape, sequences: int, tokens: int, itemsize: int) -> Floor:
    """Likewise, with `tokens` in all."""
    moved = sequences * 2 * 4 * shape.numbers + 4 * tokens * shape.channels * itemsize
    return Floor(moved, operations=tokens * (2 * shape.taps + 4) * shape.channels)


@triton.jit(
    do_not_specialize=["place", "tables_stride"],
    do_not_specialize_on_alignment=["tables", "lengths"],
)
def _step(
    mixed, rates, tables, lengths, inputs, convolution, bias, output, place,
    mixed_stride, rates_stride, tables_stride, inputs_stride,
    CHANNELS: tl.constexpr, TAPS: tl.constexpr, WINDOW: tl.constexpr, WIDTH: tl.constexpr,
    OVERLAPPED: tl.constexpr = False,
):  # fmt: skip
    """A program: some channels of a sequence."""
    launch_dependents(OVERLAPPED)
    wait_for_previous(OVERLAPPED)
    channel = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    sequence = tl.program_id(1).to(tl.int64)
    inside = channel < CHANNELS
    to = output + sequence * CHANNELS + channel
    length = tl.load(lengths + sequence)
    if length == 0:
        tl.store(to, tl.zeros((WIDTH,), output.dtype.element_ty), mask=inside)
        return

    row = mixed + sequence * mixed_stride + channel
    new = tl.load(row, mask=inside, other=0.0).to(tl.float32)
    at_rates = rates + sequence * rates_stride + channel
    new *= tl.load(at_rates, mask=inside, other=0.0).to(tl.float32)
    block = tl.load(tables + sequence * tables_stride + place).to(tl.int64)
    tap = tl.arange(0, WINDOW)[:, None]
    before = inputs + block * inputs_stride + tap * CHANNELS + channel[None, :]
    there = (tap < TAPS) & inside[None, :] & (length > 1)
    numbers = tl.where(tap == TAPS, new[None, :], tl.load(before, mask=there, other=0.0))
    read = (tap <= TAPS) & inside[None, :]
    at = convolution + channel[None, :] * (TAPS + 1) + tap
    total = tl.sum(numbers * tl.load(at, mask=read, other=0.0).to(tl.float32), 0)
    if bias is not None:
        total += tl.load(bias + channel, mask=inside, other=0.0)
    gate = tl.load(row + CHANNELS, mask=inside, other=0.0).to(tl.float32)
    tl.store(to, (total * gate).to(output.dtype.element_ty), mask=inside)
    tl.debug_barrier()  # all threads have read what was there
    tl.store(before - CHANNELS, numbers, mask=read & (tap > 0))


@triton.jit(
    do_not_specialize=["tokens", "sequences", "place", "tables_stride"],
    do_not_specialize_on_alignment=["tables", "lengths", "firsts"],
)
def _convolve(
    mixed, rates, tables, lengths, firsts, inputs, convolution, bias, output,
    tokens, sequences, place, mixed_stride, rates_stride, tables_stride, inputs_stride,
    CHANNELS: tl.constexpr, TAPS: tl.constexpr, PIECE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """A program: a piece of tokens, and some channels. Padding becomes zeros, row by row."""
    channel = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    inside = channel < CHANNELS
    row = tl.program_id(0) * PIECE + tl.arange(0, PIECE)[:, None]
    behind = (row >= tl.load(firsts + sequences)) & (row < tokens) & inside
    to = output + row.to(tl.int64) * CHANNELS + channel
    tl.store(to, tl.zeros((PIECE, WIDTH), output.dtype.element_ty), mask=behind)

    sequence, begin, count, index = place_of(firsts, sequences, tl.program_id(0), PIECE)
    if index >= count:
        return
    goes_on = tl.load(lengths + sequence) > count
    block = tl.load(tables + sequence.to(tl.int64) * tables_stride + place).to(tl.int64)
    before = inputs + block * inputs_stride + channel
    token = index + tl.arange(0, PIECE)[:, None]
    ours = (token < count) & inside
    total = tl.zeros((PIECE, WIDTH), tl.float32)
    for tap in tl.static_range(TAPS + 1):
        at = token - TAPS + tap
        place_in, there = (begin + at).to(tl.int64), ours & (at >= 0)
        new = tl.load(mixed + place_in * mixed_stride + channel, mask=there, other=0.0)
        gate = tl.load(rates + place_in * rates_stride + channel, mask=there, other=0.0)
        numbers = new.to(tl.float32) * gate.to(tl.float32)
        if tap < TAPS:
            there = ours & (at < 0) & goes_on
            numbers += tl.load(before + (TAPS + at) * CHANNELS, mask=there, other=0.0)
        weight = tl.load(convolution + channel * (TAPS + 1) + tap, mask=inside, other=0.0)
        total += numbers * weight.to(tl.float32)
    if bias is not None:
        total += tl.load(bias + channel, mask=inside, other=0.0)
    at = (begin + token).to(tl.int64)
    gate = tl.load(mixed + at * mixed_stride + CHANNELS + channel, mask=ours, other=0.0)
    made = (total * gate.to(tl.float32)).to(output.dtype.element_ty)
    tl.store(output + at * CHANNELS + channel, made, mask=ours)
