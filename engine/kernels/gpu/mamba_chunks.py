"""Many tokens of each sequence through a Mamba-2 layer, by products of matrices.

A chunk is cut into pieces of some tokens, as in section 6 of Dao and Gu (2024). What tokens of
a piece read of each other needs no state, and their queries and keys are those of many heads:

    P_ij = q_i . k_j, j <= i

with k and q the paper's B and C. `_compare` finds these. Only `_carry` goes through a chunk in
order: for each piece, with the state S before it, steps d, and g the sum of the log decays
since the piece began, g' that of all of it,

    read = e^g (q S) + (P_ij e^(g_i - g_j) d_j) v + skip v
    S = e^g' S + (e^(g' - g) k)^T (d v)

Columns of S do not depend on each other, so some programs share a head; they gate what they
read. Before that, `_convolve` makes queries, keys and values of the inputs, and behind it,
`norm_groups` norms what was read.

Twin: engine/kernels/mamba.py:chunk. Floor: `chunks_floor`.
"""

from math import gcd

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.contract import Chunks, Contexts
from engine.kernels.floor import Floor
from engine.kernels.gpu.chunk_tiles import place_of, tiles_of
from engine.kernels.gpu.mamba import norm_groups
from engine.kernels.gpu.recurrent_call import RecurrentCall
from engine.kernels.gpu.recurrent_parts import (
    convolved_rows,
    keep_last_inputs,
    piece_size,
    product,
    softplus,
    through_piece,
)
from engine.kernels.mamba import MambaWeights
from engine.kernels.recurrent import LayerStates, RecurrentInputs, RecurrentShape

CONVOLVED, CHANNELS_AT_ONCE = 16, 128  # tokens and channels that a program convolves
COMPARED = 128  # numbers of a key at once
COLUMNS = 32  # of a state, that a program has


def mamba_chunks(
    inputs: RecurrentInputs,
    states: LayerStates,
    contexts: Contexts,
    chunks: Chunks,
    weights: MambaWeights,
    *,
    out: Tensor | None = None,
    piece: int | None = None,
) -> Tensor:
    """[T, values] that the last tokens of S sequences read; their states are changed.

    Sequence s has the rows from `chunks.firsts[s]` to `firsts[s + 1]`. Rows behind the last
    chunk are padding, and give zeros. Pieces have so many tokens: 16, 32 or 64. Otherwise as
    `mamba_step`.
    """
    call, shape = RecurrentCall.of(inputs, states, contexts, weights), weights.shape
    output, firsts = call.of_chunks(inputs, contexts, chunks, out), chunks.firsts
    tokens, sequences = len(output), len(contexts.tables)
    if not tokens or not sequences:
        return output
    mixed, rates = inputs
    whole = mixed.dtype is torch.float32
    piece = piece or piece_size(mixed.dtype)
    convolved = mixed.new_empty(tokens, shape.channels)
    alike = mixed.new_empty(tokens, shape.key_heads, piece)
    mixed_stride, rates_stride, tables_stride, memory_stride, inputs_stride = call.strides
    width, where = gcd(shape.channels, CHANNELS_AT_ONCE), (*contexts, firsts)
    _convolve[tiles_of(tokens, sequences, CONVOLVED), shape.channels // width](
        *where, states.inputs, mixed, weights.convolution, weights.bias, convolved, sequences,
        states.place, tables_stride, inputs_stride, mixed_stride,
        CHANNELS=shape.channels, TAPS=shape.taps, PIECE=CONVOLVED, WIDTH=width, num_warps=4,
    )  # fmt: skip
    keep_last_inputs(mixed, states, contexts, firsts, shape)
    _compare[tiles_of(tokens, sequences, piece), shape.key_heads](
        firsts, convolved, alike, sequences, CHANNELS=shape.channels,
        KEY_HEADS=shape.key_heads, KEY=shape.key_width, PIECE=piece,
        PART=min(COMPARED, shape.key_width), num_warps=4,
    )  # fmt: skip
    columns = min(COLUMNS, shape.value_width)
    _carry[shape.value_width // columns, shape.value_heads, sequences](
        *where, states.memory, mixed, rates, convolved, alike, weights.decay, weights.offset,
        weights.skip, output, states.place, tables_stride, memory_stride, mixed_stride,
        rates_stride, **call.sizes, PIECE=piece, COLUMNS=columns,
        num_warps=8 if whole else 4, num_stages=2,
    )  # fmt: skip
    norm_groups(output, weights, firsts)
    return output


def chunks_floor(shape: RecurrentShape, sequences: int, tokens: int, itemsize: int) -> Floor:
    """States and last inputs of all sequences are read and written once; for each of `tokens`
    in all, inputs are read and outputs written, in numbers of `itemsize` bytes.

    A token is multiplied with the state for its query, and added to it.
    """
    given = shape.channels + 2 * shape.values + shape.value_heads
    moved = sequences * 2 * 4 * shape.numbers + tokens * given * itemsize
    return Floor(moved, 4 * tokens * shape.keys_times_values)


@triton.jit(
    do_not_specialize=["sequences", "place", "states_stride"],
    do_not_specialize_on_alignment=["states", "lengths", "firsts"],
)
def _convolve(
    states, lengths, firsts, inputs, mixed, convolution, bias, convolved, sequences, place,
    states_stride, inputs_stride, mixed_stride,
    CHANNELS: tl.constexpr, TAPS: tl.constexpr, PIECE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """A program: a piece of tokens, and some channels."""
    sequence, begin, count, index = place_of(firsts, sequences, tl.program_id(0), PIECE)
    if index >= count:
        return
    goes_on = tl.load(lengths + sequence) > count
    block = tl.load(states + sequence.to(tl.int64) * states_stride + place).to(tl.int64)
    channel = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    token = index + tl.arange(0, PIECE)
    total = convolved_rows(
        mixed, inputs + block * inputs_stride, convolution, begin, token, count, channel,
        channel < CHANNELS, goes_on, mixed_stride, CHANNELS, TAPS,
    )  # fmt: skip
    total += tl.load(bias + channel)[None, :]
    total = total * tl.sigmoid(total)
    to = convolved + (begin + token).to(tl.int64)[:, None] * CHANNELS + channel[None, :]
    tl.store(to, total.to(convolved.dtype.element_ty), mask=(token < count)[:, None])


@triton.jit(do_not_specialize=["sequences"], do_not_specialize_on_alignment=["firsts"])
def _compare(
    firsts, convolved, alike, sequences,
    CHANNELS: tl.constexpr, KEY_HEADS: tl.constexpr, KEY: tl.constexpr, PIECE: tl.constexpr,
    PART: tl.constexpr,
):  # fmt: skip
    """A program: products of all queries and keys of a piece of tokens and a key head."""
    head = tl.program_id(1)
    _, begin, count, index = place_of(firsts, sequences, tl.program_id(0), PIECE)
    if index >= count:
        return
    token = index + tl.arange(0, PIECE)
    live, row = (token < count)[:, None], (begin + token).to(tl.int64)[:, None]
    made = tl.zeros((PIECE, PIECE), tl.float32)
    for part in tl.range(0, KEY, PART):
        number = head * KEY + part + tl.arange(0, PART)[None, :]
        at = convolved + row * CHANNELS + number
        queries = tl.load(at, mask=live, other=0.0)
        keys = tl.load(at + KEY_HEADS * KEY, mask=live, other=0.0)
        made = product(queries, tl.trans(keys), made)
    to = alike + (row * KEY_HEADS + head) * PIECE + tl.arange(0, PIECE)[None, :]
    tl.store(to, made.to(alike.dtype.element_ty), mask=live)


@triton.jit(
    do_not_specialize=["place", "states_stride"],
    do_not_specialize_on_alignment=["states", "lengths", "firsts", "rates"],
)
def _carry(
    states, lengths, firsts, memory, mixed, rates, convolved, alike, decay, offset, skip,
    output, place, states_stride, memory_stride, mixed_stride, rates_stride,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr,
    PIECE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A program: some columns of the state of a value head, through all pieces of a chunk."""
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
    key_head = head // (VALUE_HEADS // KEY_HEADS)
    fading, added, skipped = tl.load(decay + head), tl.load(offset + head), tl.load(skip + head)
    column, later = tl.arange(0, PIECE)[None, :], tl.arange(0, PIECE)[:, None]
    for first in tl.range(0, count, PIECE):
        token = first + tl.arange(0, PIECE)
        live, row = (token < count)[:, None], (begin + token).to(tl.int64)
        at = convolved + row[:, None] * CHANNELS
        at_query = at + key_head * KEY + numbers[None, :]
        queries = tl.load(at_query, mask=live, other=0.0)
        keys = tl.load(at_query + KEY_HEADS * KEY, mask=live, other=0.0)
        channel = head * VALUE + columns
        values = tl.load(at + 2 * KEY_HEADS * KEY + channel, mask=live, other=0.0)
        at = alike + (row[:, None] * KEY_HEADS + key_head) * PIECE + column
        weights = tl.load(at, mask=live, other=0.0).to(tl.float32)
        rate = tl.load(rates + row * rates_stride + head, mask=token < count, other=0.0)
        rate = tl.where(token < count, softplus(rate.to(tl.float32) + added), 0.0)
        total = tl.cumsum(fading * rate, 0)
        whole = tl.min(total, 0)  # of the last: a sum in another order would differ

        between = tl.exp(tl.minimum(total[:, None] - total[None, :], 0.0)) * rate[None, :]
        weights *= tl.where(later >= column, between, 0.0)
        values = values.to(tl.float32)
        left = tl.exp(tl.minimum(whole - total, 0.0)) * rate
        read, state = through_piece(
            state, queries, keys, weights, values, tl.exp(total), left, tl.exp(whole)
        )
        read += skipped * values
        gates = mixed + row[:, None] * mixed_stride + CHANNELS + channel
        gate = tl.load(gates, mask=live, other=0.0).to(tl.float32)
        read *= gate * tl.sigmoid(gate)
        at = output + row[:, None] * (VALUE_HEADS * VALUE) + channel
        tl.store(at, read.to(output.dtype.element_ty), mask=live)
    tl.store(at_state, state)
