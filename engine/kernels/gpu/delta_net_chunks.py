"""Many tokens of each sequence through a gated delta net, by products of matrices.

A chunk is cut into pieces of some tokens, whose products Yang, Kautz and Hatamizadeh (2025) say
in section 3.3. What a piece adds to a state of zeros needs nothing of the pieces before it:

    A_ij = b_i (k_i . k_j) e^(g_i - g_j), j < i      T = (1 + A)^-1
    u = T (b v)      w = T (b e^g k)      P_ij = (q_i . k_j) e^(g_i - g_j), j <= i

with g the sum of the log decays since the piece began, and g' that of all of it. `solve` finds
these. Only `_carry` goes through a chunk in order: for each piece, with the state S before it,

    learned = u - w S
    read = e^g (q S) + P learned
    S = e^g' S + (e^(g' - g) k)^T learned

Columns of S do not depend on each other, so some programs share a head. Before that,
`_convolve` makes queries, keys and values of the inputs, and behind it, `_finish` norms and
gates what was read.

Twin: engine/kernels/delta_net.py:chunk. Floor: `chunks_floor`.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.contract import Chunks, Contexts
from engine.kernels.delta_net import DeltaWeights
from engine.kernels.floor import Floor
from engine.kernels.gpu.chunk_tiles import place_of, tiles_of
from engine.kernels.gpu.delta_net import LEAST_SQUARE
from engine.kernels.gpu.delta_net_pieces import solve
from engine.kernels.gpu.recurrent_call import RecurrentCall
from engine.kernels.gpu.recurrent_parts import (
    convolved_rows,
    keep_last_inputs,
    piece_size,
    product,
    through_piece,
)
from engine.kernels.recurrent import LayerStates, RecurrentInputs, RecurrentShape

CONVOLVED = 16  # tokens that a program convolves
COLUMNS = 32  # of a state, that a program has
ROWS = 8  # that a program norms


class _Room(NamedTuple):
    """What the launches leave for each other; the output has u, and then what was read."""

    convolved: Tensor  # [T, channels]
    known: Tensor  # [T, value_heads, key_width] w
    asked: Tensor  # [T, value_heads, piece] P
    since: Tensor  # [T, value_heads] g, float32


def delta_net_chunks(
    inputs: RecurrentInputs,
    states: LayerStates,
    contexts: Contexts,
    chunks: Chunks,
    weights: DeltaWeights,
    *,
    out: Tensor | None = None,
    piece: int | None = None,
) -> Tensor:
    """[T, values] that the last tokens of S sequences read; their states are changed.

    Sequence s has the rows from `chunks.firsts[s]` to `firsts[s + 1]`. Rows behind the last
    chunk are padding, and give zeros. Pieces have so many tokens: 16, 32 or 64. Otherwise as
    `delta_net_step`.
    """
    call, shape = RecurrentCall.of(inputs, states, contexts, weights), weights.shape
    output, firsts = call.of_chunks(inputs, contexts, chunks, out), chunks.firsts
    tokens, sequences = len(output), len(contexts.tables)
    if not tokens or not sequences:
        return output
    whole = inputs.mixed.dtype is torch.float32
    piece = piece or piece_size(inputs.mixed.dtype)
    mixed, rates = inputs
    room = _Room(
        mixed.new_empty(tokens, shape.channels),
        mixed.new_empty(tokens, shape.value_heads, shape.key_width),
        mixed.new_empty(tokens, shape.value_heads, piece),
        mixed.new_empty(tokens, shape.value_heads, dtype=torch.float32),
    )
    mixed_stride, rates_stride, tables_stride, memory_stride, inputs_stride = call.strides
    tiles, sizes = tiles_of(tokens, sequences, piece), call.sizes
    _convolve[tiles_of(tokens, sequences, CONVOLVED), 2 * shape.key_heads + shape.value_heads](
        contexts.tables, contexts.lengths, firsts, states.inputs, mixed, weights.convolution,
        room.convolved, sequences, states.place, tables_stride, inputs_stride, mixed_stride,
        **sizes, TAPS=shape.taps, PIECE=CONVOLVED,
        WIDTH=max(shape.key_width, shape.value_width), num_warps=4,
    )  # fmt: skip
    keep_last_inputs(mixed, states, contexts, firsts, shape)
    solve[tiles, shape.value_heads](
        rates, firsts, weights.decay, weights.offset, *room, output, sequences, rates_stride,
        **sizes, PIECE=piece, LEVELS=piece.bit_length() - 1, num_warps=4, num_stages=1,
    )  # fmt: skip
    columns = min(COLUMNS, shape.value_width)
    _carry[shape.value_width // columns, shape.value_heads, sequences](
        contexts.tables, contexts.lengths, firsts, states.memory, *room, output, states.place,
        tables_stride, memory_stride, **sizes, PIECE=piece, COLUMNS=columns,
        num_warps=8 if whole else 4, num_stages=2,
    )  # fmt: skip
    _finish[triton.cdiv(tokens, ROWS), shape.value_heads](
        mixed, firsts, weights.norm, output, sequences, tokens, mixed_stride, weights.eps,
        VALUE_HEADS=shape.value_heads, VALUE=shape.value_width, CHANNELS=shape.channels,
        ROWS=ROWS, num_warps=4,
    )  # fmt: skip
    return output


def chunks_floor(shape: RecurrentShape, sequences: int, tokens: int, itemsize: int) -> Floor:
    """States and last inputs of all sequences are read and written once; for each of `tokens`
    in all, inputs are read and outputs written, in numbers of `itemsize` bytes.

    A token is multiplied with the state for its key and for its query, and added to it.
    """
    given = shape.channels + 2 * shape.values + 2 * shape.value_heads
    moved = sequences * 2 * 4 * shape.numbers + tokens * given * itemsize
    return Floor(moved, 6 * tokens * shape.keys_times_values)


@triton.jit(
    do_not_specialize=["sequences", "place", "states_stride"],
    do_not_specialize_on_alignment=["states", "lengths", "firsts"],
)
def _convolve(
    states, lengths, firsts, inputs, mixed, convolution, convolved, sequences, place,
    states_stride, inputs_stride, mixed_stride,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr,
    TAPS: tl.constexpr, PIECE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """A program: a piece of tokens, and the queries, keys or values of a head."""
    CHANNELS: tl.constexpr = 2 * KEY_HEADS * KEY + VALUE_HEADS * VALUE
    head = tl.program_id(1)
    sequence, begin, count, index = place_of(firsts, sequences, tl.program_id(0), PIECE)
    if index >= count:
        return
    goes_on = tl.load(lengths + sequence) > count
    block = tl.load(states + sequence.to(tl.int64) * states_stride + place).to(tl.int64)
    behind, columns = head - 2 * KEY_HEADS, tl.arange(0, WIDTH)
    inside = columns < tl.where(behind < 0, KEY, VALUE)
    channel = tl.where(behind < 0, head * KEY, 2 * KEY_HEADS * KEY + behind * VALUE) + columns
    token = index + tl.arange(0, PIECE)
    total = convolved_rows(
        mixed, inputs + block * inputs_stride, convolution, begin, token, count, channel,
        inside, goes_on, mixed_stride, CHANNELS, TAPS,
    )  # fmt: skip
    total = total * tl.sigmoid(total)
    length = tl.rsqrt(tl.sum(total * total, 1) + LEAST_SQUARE)
    length *= tl.where(head < KEY_HEADS, KEY**-0.5, 1.0)
    total *= tl.where(behind < 0, length, 1.0)[:, None]
    to = convolved + (begin + token).to(tl.int64)[:, None] * CHANNELS + channel[None, :]
    live = (token < count)[:, None] & inside[None, :]
    tl.store(to, total.to(convolved.dtype.element_ty), mask=live)


@triton.jit(
    do_not_specialize=["place", "states_stride"],
    do_not_specialize_on_alignment=["states", "lengths", "firsts"],
)
def _carry(
    states, lengths, firsts, memory, convolved, known, asked, since, output, place,
    states_stride, memory_stride,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr,
    PIECE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A program: some columns of the state of a value head, through all pieces of a chunk.

    The output has u already; what is read takes its place.
    """
    CHANNELS: tl.constexpr = 2 * KEY_HEADS * KEY + VALUE_HEADS * VALUE
    head, sequence = tl.program_id(1), tl.program_id(2).to(tl.int64)
    begin = tl.load(firsts + sequence)
    count = tl.load(firsts + sequence + 1) - begin
    if count == 0:
        return
    block = tl.load(states + sequence * states_stride + place).to(tl.int64)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    numbers = tl.arange(0, KEY)
    within = numbers[:, None] * VALUE + columns
    at_state = memory + block * memory_stride + head * (KEY * VALUE) + within
    goes_on = (tl.load(lengths + sequence) > count) & (within >= 0)
    state = tl.load(at_state, mask=goes_on, other=0.0)
    shared = head // (VALUE_HEADS // KEY_HEADS) * KEY + numbers[None, :]
    for first in tl.range(0, count, PIECE):
        token = first + tl.arange(0, PIECE)
        live, row = (token < count)[:, None], (begin + token).to(tl.int64)
        line = row * VALUE_HEADS + head
        at = convolved + row[:, None] * CHANNELS + shared
        queries = tl.load(at, mask=live, other=0.0)
        keys = tl.load(at + KEY_HEADS * KEY, mask=live, other=0.0)
        at = known + line[:, None] * KEY + numbers[None, :]
        reached = tl.load(at, mask=live, other=0.0)
        at = asked + line[:, None] * PIECE + tl.arange(0, PIECE)[None, :]
        weights = tl.load(at, mask=live, other=0.0)
        total = tl.load(since + line, mask=token < count, other=0.0)
        last = (begin + tl.minimum(first + PIECE, count) - 1).to(tl.int64)
        whole = tl.load(since + last * VALUE_HEADS + head)
        at = output + line[:, None] * VALUE + columns
        learned = tl.load(at, mask=live, other=0.0).to(tl.float32)

        learned -= product(
            reached, state.to(keys.dtype), tl.zeros((PIECE, COLUMNS), tl.float32)
        )
        left = tl.exp(tl.minimum(whole - total, 0.0))
        read, state = through_piece(
            state, queries, keys, weights, learned, tl.exp(total), left, tl.exp(whole)
        )
        tl.store(at, read.to(output.dtype.element_ty), mask=live)
    tl.store(at_state, state)


@triton.jit(
    do_not_specialize=["sequences", "tokens"], do_not_specialize_on_alignment=["firsts"]
)
def _finish(
    mixed, firsts, norm, output, sequences, tokens, mixed_stride, eps,
    VALUE_HEADS: tl.constexpr, VALUE: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """A program: some rows of a value head, normed and gated; zeros behind the last chunk."""
    head, columns = tl.program_id(1), tl.arange(0, VALUE)[None, :]
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live, row = (token < tl.load(firsts + sequences))[:, None], token.to(tl.int64)
    at = output + (row * VALUE_HEADS + head)[:, None] * VALUE + columns
    read = tl.load(at, mask=live, other=0.0).to(tl.float32)
    gates = mixed + row[:, None] * mixed_stride + CHANNELS + head * VALUE + columns
    gate = tl.load(gates, mask=live, other=0.0).to(tl.float32)
    weights = tl.load(norm + tl.arange(0, VALUE)).to(tl.float32)
    size = tl.rsqrt(tl.sum(read * read, 1) / VALUE + eps)
    made = read * size[:, None] * weights[None, :] * gate * tl.sigmoid(gate)
    tl.store(at, made.to(output.dtype.element_ty), mask=(token < tokens)[:, None])
