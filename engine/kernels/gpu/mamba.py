"""One token of each sequence through a Mamba-2 layer: a decode step, in two or three launches.

Some ten or a hundred value heads share the queries and keys of a few key heads, or of one, so
what a program convolves is not what a program needs. `_convolve` has programs of some channels
each, which are convolved, and whose new inputs take their place. `_step` has programs of some
columns of one value head, as columns of a state do not depend on each other: the part of the
state is held in registers, read once and written once, which is what the step takes its time
for. What is read is gated there. `norm_groups` norms it, if the model does, since a group has
channels of several heads. Nothing is read of the state of a sequence that begins, whatever its
block has.

Twin: engine/kernels/mamba.py:step. Floor: `step_floor`. Many tokens of a sequence:
engine/kernels/gpu/mamba_chunks.py.
"""

from math import gcd

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.contract import Contexts
from engine.kernels.floor import Floor
from engine.kernels.gpu.overlapping import launch_dependents, pdl_options, wait_for_previous
from engine.kernels.gpu.paged_call import power_of_two
from engine.kernels.gpu.recurrent_call import RecurrentCall
from engine.kernels.gpu.recurrent_parts import convolved_row, keep_row, softplus
from engine.kernels.mamba import MambaWeights
from engine.kernels.recurrent import LayerStates, RecurrentInputs, RecurrentShape

CONVOLVED = 128  # channels of a program
COLUMNS = 32  # of a state, that a program has: a line of memory
NUMBERS_OF_A_WARP = 2048  # of a state: 64 registers of each thread
NORMED_BY_A_WARP = 512
MOST_WARPS = 8


def mamba_step(
    inputs: RecurrentInputs,
    states: LayerStates,
    contexts: Contexts,
    weights: MambaWeights,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """[S, values] that the last tokens of S sequences read; their states are changed.

    The tables of `contexts` [S, state blocks] are int32 blocks of states, of which a layer uses
    the one in the column `states.place`. A row whose length is 0 reads and writes nothing, and
    gives zeros; a sequence of length 1 begins with a state of zeros. `out` is written to, if
    given, and contiguous. Raises ValueError for what does not fit together.
    """
    call, shape = RecurrentCall.of(inputs, states, contexts, weights), weights.shape
    output, sequences = call.of_steps(inputs, contexts, out), len(contexts.tables)
    if not sequences:
        return output
    mixed_stride, rates_stride, tables_stride, memory_stride, inputs_stride = call.strides
    convolved = inputs.mixed.new_empty(sequences, shape.channels, dtype=torch.float32)
    width, where = gcd(shape.channels, CONVOLVED), (contexts.tables, contexts.lengths)
    _convolve[shape.channels // width, sequences](
        inputs.mixed, *where, states.inputs, weights.convolution, weights.bias, convolved,
        states.place, mixed_stride, tables_stride, inputs_stride,
        CHANNELS=shape.channels, TAPS=shape.taps, WINDOW=power_of_two(shape.taps + 1),
        WIDTH=width, num_warps=1, **pdl_options(),
    )  # fmt: skip
    columns = min(COLUMNS, shape.value_width)
    warps = shape.key_width * columns // NUMBERS_OF_A_WARP
    _step[shape.value_width // columns, shape.value_heads, sequences](
        inputs.mixed, inputs.rates, *where, states.memory, convolved, weights.decay,
        weights.offset, weights.skip, output, states.place, mixed_stride, rates_stride,
        tables_stride, memory_stride,
        **call.sizes, COLUMNS=columns, num_warps=max(1, min(MOST_WARPS, warps)),
        **pdl_options(),
    )  # fmt: skip
    if weights.norm is not None:
        norm_groups(output, weights)
    return output


def norm_groups(output: Tensor, weights: MambaWeights, firsts: Tensor | None = None) -> None:
    """Norm rows [T, values] in their place, by groups, or not where there is no norm.

    Of the chunks that begin at `firsts`, the last of which are their end: zeros behind them.
    """
    values, norm = weights.shape.values, weights.norm
    groups = 1 if norm is None else weights.norm_groups
    warps = power_of_two(values // groups) // NORMED_BY_A_WARP
    _norm[len(output), groups](
        output, norm, firsts, 0 if firsts is None else len(firsts) - 1, weights.eps,
        WIDTH=values // groups, SPAN=power_of_two(values // groups),
        num_warps=max(1, min(MOST_WARPS, warps)), **pdl_options(),
    )  # fmt: skip


def step_floor(shape: RecurrentShape, sequences: int, itemsize: int) -> Floor:
    """States are read and written once, and so are the last inputs; inputs are read and
    outputs written in numbers of `itemsize` bytes.

    Each number of a state is faded, added to, and multiplied with a query.
    """
    given = shape.channels + 2 * shape.values + shape.value_heads
    moved = 2 * 4 * shape.numbers + given * itemsize
    weights = itemsize * (shape.taps + 1) * shape.channels + 4 * shape.channels
    worked = 5 * shape.keys_times_values + 2 * (shape.taps + 1) * shape.channels
    return Floor(sequences * moved + weights, operations=sequences * worked)


@triton.jit(
    do_not_specialize=["place", "states_stride"],
    do_not_specialize_on_alignment=["states", "lengths"],
)
def _convolve(
    mixed, states, lengths, inputs, convolution, bias, convolved, place,
    mixed_stride, states_stride, inputs_stride,
    CHANNELS: tl.constexpr, TAPS: tl.constexpr, WINDOW: tl.constexpr, WIDTH: tl.constexpr,
    OVERLAPPED: tl.constexpr = False,
):  # fmt: skip
    """A program: some channels of a sequence."""
    launch_dependents(OVERLAPPED)
    wait_for_previous(OVERLAPPED)
    first, sequence = tl.program_id(0) * WIDTH, tl.program_id(1).to(tl.int64)
    length = tl.load(lengths + sequence)
    if length == 0:
        return
    block = tl.load(states + sequence * states_stride + place).to(tl.int64)
    row, before = mixed + sequence * mixed_stride, inputs + block * inputs_stride
    total = convolved_row(
        row, before, convolution, first, length > 1, CHANNELS, TAPS, WINDOW, WIDTH
    )
    channel = first + tl.arange(0, WIDTH)
    total += tl.load(bias + channel)
    tl.store(convolved + sequence * CHANNELS + channel, total * tl.sigmoid(total))
    keep_row(row, before, first, length > 1, CHANNELS, TAPS, WINDOW, WIDTH)


@triton.jit(
    do_not_specialize=["place", "states_stride"],
    do_not_specialize_on_alignment=["states", "lengths", "rates"],
)
def _step(
    mixed, rates, states, lengths, memory, convolved, decay, offset, skip, output, place,
    mixed_stride, rates_stride, states_stride, memory_stride,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr,
    COLUMNS: tl.constexpr, OVERLAPPED: tl.constexpr = False,
):  # fmt: skip
    """A program: some columns of the state of a value head of a sequence."""
    launch_dependents(OVERLAPPED)
    wait_for_previous(OVERLAPPED)
    CHANNELS: tl.constexpr = 2 * KEY_HEADS * KEY + VALUE_HEADS * VALUE
    head, sequence = tl.program_id(1), tl.program_id(2).to(tl.int64)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    channel = head * VALUE + columns
    answer = output + sequence * (VALUE_HEADS * VALUE) + channel
    length = tl.load(lengths + sequence)
    if length == 0:
        tl.store(answer, tl.zeros((COLUMNS,), output.dtype.element_ty))
        return

    block = tl.load(states + sequence * states_stride + place).to(tl.int64)
    numbers = tl.arange(0, KEY)
    within = numbers[:, None] * VALUE + columns[None, :]
    at = memory + block * memory_stride + head * (KEY * VALUE) + within
    state = tl.load(at, mask=(length > 1) & (within >= 0), other=0.0)
    row = convolved + sequence * CHANNELS
    at_query = row + head // (VALUE_HEADS // KEY_HEADS) * KEY + numbers
    query, key = tl.load(at_query), tl.load(at_query + KEY_HEADS * KEY)
    value = tl.load(row + 2 * KEY_HEADS * KEY + channel)
    rate = tl.load(rates + sequence * rates_stride + head).to(tl.float32)
    rate = softplus(rate + tl.load(offset + head))
    state = (
        state * tl.exp(tl.load(decay + head) * rate) + key[:, None] * (value * rate)[None, :]
    )
    tl.store(at, state)
    read = tl.sum(state * query[:, None], 0) + tl.load(skip + head) * value
    gate = tl.load(mixed + sequence * mixed_stride + CHANNELS + channel).to(tl.float32)
    tl.store(answer, (read * gate * tl.sigmoid(gate)).to(output.dtype.element_ty))


@triton.jit(do_not_specialize=["end"], do_not_specialize_on_alignment=["firsts"])
def _norm(
    output, norm, firsts, end, eps,
    WIDTH: tl.constexpr, SPAN: tl.constexpr, OVERLAPPED: tl.constexpr = False,
):  # fmt: skip
    """A program: a group of a row."""
    launch_dependents(OVERLAPPED)
    wait_for_previous(OVERLAPPED)
    row, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = group * WIDTH + tl.arange(0, SPAN)
    inside = tl.arange(0, SPAN) < WIDTH
    at = output + row * (tl.num_programs(1) * WIDTH) + columns
    if firsts is not None:  # noqa: SIM102  an `and` would load from what is not there
        if row >= tl.load(firsts + end):
            tl.store(at, tl.zeros((SPAN,), output.dtype.element_ty), mask=inside)
            return
    if norm is not None:
        read = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        size = tl.rsqrt(tl.sum(read * read, 0) / WIDTH + eps)
        made = read * size * tl.load(norm + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(at, made.to(output.dtype.element_ty), mask=inside)
