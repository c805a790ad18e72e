"""One token of each sequence through a gated delta net: a decode step, in one launch.

A program has one key head of one sequence, and the value heads that share it: so all channels
of the convolution that it reads are its own, and it may put the new inputs in their place. A
value head's state [key_width, value_width] is held in registers, read once and written once,
which is what the step takes its time for. Nothing is read of the state of a sequence that
begins, whatever its block has.

Twin: engine/kernels/delta_net.py:step. Floor: `step_floor`. Many tokens of a sequence:
engine/kernels/gpu/delta_net_chunks.py.
"""

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.contract import Contexts
from engine.kernels.delta_net import SMALLEST, DeltaWeights
from engine.kernels.floor import Floor
from engine.kernels.gpu.overlapping import launch_dependents, pdl_options, wait_for_previous
from engine.kernels.gpu.paged_call import power_of_two
from engine.kernels.gpu.recurrent_call import RecurrentCall
from engine.kernels.gpu.recurrent_parts import convolved_row, keep_row, softplus
from engine.kernels.recurrent import LayerStates, RecurrentInputs, RecurrentShape

NUMBERS_OF_A_WARP = 2048  # of a state: 64 registers of each thread
MOST_WARPS = 8
LEAST_SQUARE = tl.constexpr(SMALLEST)


def delta_net_step(
    inputs: RecurrentInputs,
    states: LayerStates,
    contexts: Contexts,
    weights: DeltaWeights,
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
    output = call.of_steps(inputs, contexts, out)
    if not len(output):
        return output
    warps = shape.key_width * shape.value_width // NUMBERS_OF_A_WARP
    _step[shape.key_heads, len(output)](
        inputs.mixed, inputs.rates, contexts.tables, contexts.lengths, states.memory,
        states.inputs, weights.convolution, weights.decay, weights.offset, weights.norm, output,
        states.place, *call.strides, weights.eps,
        **call.sizes, TAPS=shape.taps, WINDOW=power_of_two(shape.taps + 1),
        num_warps=max(1, min(MOST_WARPS, warps)), **pdl_options(),
    )  # fmt: skip
    return output


def step_floor(shape: RecurrentShape, sequences: int, itemsize: int) -> Floor:
    """States are read and written once, and so are the last inputs; inputs are read and
    outputs written in numbers of `itemsize` bytes.

    Each number of a state is faded, multiplied with a key, added to, and multiplied with a
    query.
    """
    given = shape.channels + 2 * shape.values + 2 * shape.value_heads
    moved = 2 * 4 * shape.numbers + given * itemsize
    weights = itemsize * (shape.taps + 1) * shape.channels
    worked = 7 * shape.keys_times_values + 2 * (shape.taps + 1) * shape.channels
    return Floor(sequences * moved + weights, operations=sequences * worked)


@triton.jit
def _key(
    row, before, convolution, first, goes_on, CHANNELS: tl.constexpr, TAPS: tl.constexpr,
    WINDOW: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """[WIDTH] float32 of the channels from `first` on, convolved, behind silu, of length 1."""
    total = convolved_row(
        row, before, convolution, first, goes_on, CHANNELS, TAPS, WINDOW, WIDTH
    )
    total = total * tl.sigmoid(total)
    return total * tl.rsqrt(tl.sum(total * total, 0) + LEAST_SQUARE)


@triton.jit
def _value(
    row, before, convolution, first, goes_on,
    CHANNELS: tl.constexpr, TAPS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """[WIDTH] float32 likewise, of any length.

    Tap by tap: the layout of all taps together would spread to the state, and not suit it.
    """
    channel = first + tl.arange(0, WIDTH)
    weights = convolution + channel * (TAPS + 1)
    total = tl.load(row + channel).to(tl.float32) * tl.load(weights + TAPS).to(tl.float32)
    for tap in tl.static_range(TAPS):
        old = tl.load(
            before + tap * CHANNELS + channel, mask=goes_on & (channel >= 0), other=0.0
        )
        total += old * tl.load(weights + tap).to(tl.float32)
    return total * tl.sigmoid(total)


@triton.jit(
    do_not_specialize=["place", "states_stride"],
    do_not_specialize_on_alignment=["states", "lengths"],
)
def _step(
    mixed,
    rates,
    states,
    lengths,
    memory,
    inputs,
    convolution,
    decay,
    offset,
    norm,
    output,
    place,
    mixed_stride,
    rates_stride,
    states_stride,
    memory_stride,
    inputs_stride,
    eps,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    TAPS: tl.constexpr,
    WINDOW: tl.constexpr,
    OVERLAPPED: tl.constexpr = False,
):
    """A program: key head `x` of sequence `y`, and the value heads that share it."""
    launch_dependents(OVERLAPPED)
    wait_for_previous(OVERLAPPED)
    SHARING: tl.constexpr = VALUE_HEADS // KEY_HEADS
    CHANNELS: tl.constexpr = 2 * KEY_HEADS * KEY + VALUE_HEADS * VALUE
    key_head, sequence = tl.program_id(0), tl.program_id(1).to(tl.int64)
    numbers = tl.arange(0, VALUE)
    answers = output + sequence * (VALUE_HEADS * VALUE)
    length = tl.load(lengths + sequence)
    if length == 0:
        nothing = tl.zeros((VALUE,), output.dtype.element_ty)
        for shared in tl.range(SHARING):
            tl.store(answers + (key_head * SHARING + shared) * VALUE + numbers, nothing)
        return

    goes_on = length > 1
    block = tl.load(states + sequence * states_stride + place).to(tl.int64)
    row, before = mixed + sequence * mixed_stride, inputs + block * inputs_stride
    first = key_head * KEY
    query = _key(row, before, convolution, first, goes_on, CHANNELS, TAPS, WINDOW, KEY)
    query *= KEY**-0.5
    keep_row(row, before, first, goes_on, CHANNELS, TAPS, WINDOW, KEY)
    first += KEY_HEADS * KEY
    key = _key(row, before, convolution, first, goes_on, CHANNELS, TAPS, WINDOW, KEY)
    keep_row(row, before, first, goes_on, CHANNELS, TAPS, WINDOW, KEY)

    within = tl.arange(0, KEY)[:, None] * VALUE + numbers[None, :]
    weights = tl.load(norm + numbers).to(tl.float32)
    for shared in tl.range(SHARING):
        head = key_head * SHARING + shared
        at = memory + block * memory_stride + head * (KEY * VALUE) + within
        state = tl.load(at, mask=goes_on & (within >= 0), other=0.0)
        first = 2 * KEY_HEADS * KEY + head * VALUE
        value = _value(row, before, convolution, first, goes_on, CHANNELS, TAPS, VALUE)
        keep_row(row, before, first, goes_on, CHANNELS, TAPS, WINDOW, VALUE)
        told = rates + sequence * rates_stride + head
        rate = tl.sigmoid(tl.load(told).to(tl.float32))
        faded = tl.load(told + VALUE_HEADS).to(tl.float32) + tl.load(offset + head)
        state *= tl.exp(tl.load(decay + head) * softplus(faded))
        learned = rate * (value - tl.sum(state * key[:, None], 0))
        state += key[:, None] * learned[None, :]
        tl.store(at, state)
        read = tl.sum(state * query[:, None], 0)
        gate = tl.load(row + CHANNELS + head * VALUE + numbers).to(tl.float32)
        size = tl.rsqrt(tl.sum(read * read, 0) / VALUE + eps)
        made = read * size * weights * gate * tl.sigmoid(gate)
        tl.store(answers + head * VALUE + numbers, made.to(output.dtype.element_ty))
