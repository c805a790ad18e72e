"""What kernels of layers that keep a state share: their convolution, and the way of a state.

The convolution is of one token (`convolved_row`, `keep_row`) or of many (`convolved_rows`,
`keep_last_inputs`). Channels of a row lie one behind the other.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.contract import Contexts
from engine.kernels.gpu.attending import INTERPRETED
from engine.kernels.gpu.paged_call import power_of_two
from engine.kernels.recurrent import LayerStates, RecurrentShape

STRAIGHT = tl.constexpr(20.0)  # from here on softplus(x) is x
KEPT_AT_ONCE = 1024  # channels, or fewer, so that a program keeps at most MOST_KEPT numbers
MOST_KEPT = 4096
PIECE, PIECE_IN_FLOAT32 = 64, 16  # tokens: more have no room in registers


def piece_size(dtype: torch.dtype) -> int:
    """Tokens of a piece of a chunk, which is computed by products of matrices."""
    return PIECE_IN_FLOAT32 if dtype is torch.float32 else PIECE


@triton.jit
def softplus(number):
    """log(1 + exp(x)), in float32."""
    return tl.where(number > STRAIGHT, number, tl.log(1 + tl.exp(tl.minimum(number, STRAIGHT))))


@triton.jit
def product(rows, columns, added):
    """rows [m, k] @ columns [k, n] + added, in float32, which three products in tf32 make.

    Triton's interpreter multiplies bfloat16 as whole numbers, so it gets float32.
    """
    if INTERPRETED:
        rows, columns = rows.to(tl.float32), columns.to(tl.float32)
    return tl.dot(rows, columns, added, input_precision="tf32x3")


@triton.jit
def through_piece(state, queries, keys, weights, written, since, left, whole):
    """What a piece of tokens reads [tokens, columns], and the state [keys, columns] behind it.

    Weights [tokens, tokens] are of what they read of each other. The state before is faded by
    `since` until each token reads it, and by `whole` at the end, when as much as `left` is left
    of what each has written.
    """
    carried = state.to(keys.dtype)
    nothing = tl.zeros((queries.shape[0], state.shape[1]), tl.float32)
    read = product(queries, carried, nothing) * since[:, None]
    read = product(weights.to(keys.dtype), written.to(keys.dtype), read)
    faded = written * left[:, None]
    return read, product(tl.trans(keys), faded.to(keys.dtype), state * whole)


@triton.jit
def convolved_row(
    row, before, convolution, first, goes_on, CHANNELS: tl.constexpr, TAPS: tl.constexpr,
    WINDOW: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """[WIDTH] float32 of the channels from `first` on of one token, convolved.

    All taps at once: line by line, what is read would be read anew for each row of a state.
    """
    tap, channel = tl.arange(0, WINDOW)[:, None], first + tl.arange(0, WIDTH)[None, :]
    there = (tap < TAPS) & goes_on
    old = tl.load(before + tap * CHANNELS + channel, mask=there, other=0.0)
    numbers = tl.where(tap == TAPS, tl.load(row + channel).to(tl.float32), old)
    weights = tl.load(convolution + channel * (TAPS + 1) + tap, mask=tap <= TAPS, other=0.0)
    return tl.sum(numbers * weights.to(tl.float32), 0)


@triton.jit
def keep_row(
    row, before, first, goes_on, CHANNELS: tl.constexpr, TAPS: tl.constexpr,
    WINDOW: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Put the last TAPS inputs, with the one of this row, where the next token looks for them.

    What is there has been read by now, or is read here.
    """
    tap, channel = tl.arange(0, WINDOW)[:, None], first + tl.arange(0, WIDTH)[None, :]
    there = (tap < TAPS - 1) & goes_on
    old = tl.load(before + (tap + 1) * CHANNELS + channel, mask=there, other=0.0)
    kept = tl.where(tap == TAPS - 1, tl.load(row + channel).to(tl.float32), old)
    tl.debug_barrier()  # all threads have
    tl.store(before + tap * CHANNELS + channel, kept, mask=tap < TAPS)


@triton.jit
def convolved_rows(
    mixed, before, convolution, begin, token, count, channel, inside, goes_on, mixed_stride,
    CHANNELS: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """[tokens, channels] float32 of these tokens of a chunk, which begins at row `begin`, and
    of channels which are `inside`, convolved; `before` are the sequence's last inputs.
    """
    ours = (token < count)[:, None] & inside[None, :]
    total = tl.zeros((token.shape[0], channel.shape[0]), tl.float32)
    for tap in tl.static_range(TAPS + 1):
        at = token - TAPS + tap
        new = mixed + (begin + at).to(tl.int64)[:, None] * mixed_stride + channel[None, :]
        numbers = tl.load(new, mask=ours & (at >= 0)[:, None], other=0.0).to(tl.float32)
        if tap < TAPS:
            old = before + (TAPS + at)[:, None] * CHANNELS + channel[None, :]
            there = ours & (at < 0)[:, None] & goes_on
            numbers += tl.load(old, mask=there, other=0.0)
        weight = tl.load(convolution + channel * (TAPS + 1) + tap, mask=inside, other=0.0)
        total += numbers * weight.to(tl.float32)[None, :]
    return total


def keep_last_inputs(
    mixed: Tensor,
    states: LayerStates,
    contexts: Contexts,
    firsts: Tensor,
    net: RecurrentShape,
    gates: Tensor | None = None,
) -> None:
    """Leave the last inputs of each chunk in its sequence's state, once those before have been
    read; multiplied by `gates` [tokens, channels], if there are any.
    """
    gates_stride = 0 if gates is None else gates.stride(0)
    window = power_of_two(net.taps)
    width = min(KEPT_AT_ONCE, MOST_KEPT // window)
    _keep_last[triton.cdiv(net.channels, width), len(contexts.tables)](
        contexts.tables, contexts.lengths, firsts, states.inputs, mixed, gates, states.place,
        contexts.tables.stride(0), states.inputs.stride(0), mixed.stride(0), gates_stride,
        CHANNELS=net.channels, TAPS=net.taps, WINDOW=window, WIDTH=width, num_warps=4,
    )  # fmt: skip


@triton.jit(
    do_not_specialize=["place", "states_stride"],
    do_not_specialize_on_alignment=["states", "lengths", "firsts"],
)
def _keep_last(
    states, lengths, firsts, inputs, mixed, gates, place,
    states_stride, inputs_stride, mixed_stride, gates_stride,
    CHANNELS: tl.constexpr, TAPS: tl.constexpr, WINDOW: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """A program: the last inputs of some channels of a sequence."""
    sequence = tl.program_id(1).to(tl.int64)
    begin = tl.load(firsts + sequence)
    count = tl.load(firsts + sequence + 1) - begin
    if count == 0:
        return
    goes_on = tl.load(lengths + sequence) > count
    block = tl.load(states + sequence * states_stride + place).to(tl.int64)
    tap = tl.arange(0, WINDOW)[:, None]
    channel = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)[None, :]
    there, at = (tap < TAPS) & (channel < CHANNELS), count - TAPS + tap
    before = inputs + block * inputs_stride + channel
    old = before + (TAPS + at) * CHANNELS
    kept = tl.load(old, mask=there & (at < 0) & goes_on, other=0.0)
    row, new = (begin + at).to(tl.int64), there & (at >= 0)
    numbers = tl.load(mixed + row * mixed_stride + channel, mask=new, other=0.0)
    numbers = numbers.to(tl.float32)
    if gates is not None:
        gate = tl.load(gates + row * gates_stride + channel, mask=new, other=0.0)
        numbers *= gate.to(tl.float32)
    kept += numbers
    tl.debug_barrier()  # all threads have read what was there
    tl.store(before + tap * CHANNELS, kept, mask=there)
