"""What a piece of a chunk adds to a state of zeros, in a gated delta net (delta_net_chunks.py).

T = (1 + A)^-1 is found by halves: the inverse of a triangle [[a, 0], [c, d]] is
[[a', 0], [-d' c a', d']]. All blocks of one size are inverted by two products of whole
matrices, from 1 x 1, which are ones, upwards; no power of A is taken, which would cancel where
keys are alike.
"""

import triton
import triton.language as tl

from engine.kernels.gpu.chunk_tiles import place_of
from engine.kernels.gpu.recurrent_parts import product, softplus


@triton.jit
def _inverse(system, PIECE: tl.constexpr, LEVELS: tl.constexpr):
    """(1 + system)^-1 of what is nothing but below the diagonal, [PIECE, PIECE] float32.

    Below the blocks of 2^level on the diagonal, which are inverted already, lie those that make
    blocks of twice that size of them.
    """
    row, column = tl.arange(0, PIECE)[:, None], tl.arange(0, PIECE)[None, :]
    made, nothing = (row == column).to(tl.float32), tl.zeros((PIECE, PIECE), tl.float32)
    for level in tl.range(LEVELS):
        block = row >> level
        below = (block == (column >> level) + 1) & (block & 1 == 1)
        between = product(made, tl.where(below, system, 0.0), nothing)
        made -= product(between, made, nothing)
    return made


@triton.jit(
    do_not_specialize=["sequences"],
    do_not_specialize_on_alignment=["firsts", "rates"],
)
def solve(
    rates, firsts, decay, offset, convolved, known, asked, since, learned, sequences,
    rates_stride,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr,
    PIECE: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """A program: what needs no state, of a piece of tokens and a value head."""
    CHANNELS: tl.constexpr = 2 * KEY_HEADS * KEY + VALUE_HEADS * VALUE
    head = tl.program_id(1)
    _, begin, count, index = place_of(firsts, sequences, tl.program_id(0), PIECE)
    if index >= count:
        return
    token = index + tl.arange(0, PIECE)
    live, row = token < count, (begin + token).to(tl.int64)
    told = rates + row * rates_stride + head
    rate = tl.sigmoid(tl.load(told, mask=live, other=0.0).to(tl.float32))
    rate = tl.where(live, rate, 0.0)
    faded = tl.load(told + VALUE_HEADS, mask=live, other=0.0).to(tl.float32)
    faded = tl.load(decay + head) * softplus(faded + tl.load(offset + head))
    total = tl.cumsum(tl.where(live, faded, 0.0), 0)
    tl.store(since + row * VALUE_HEADS + head, total, mask=live)

    row = row[:, None]
    shared = (
        row * CHANNELS + head // (VALUE_HEADS // KEY_HEADS) * KEY + tl.arange(0, KEY)[None, :]
    )
    queries = tl.load(convolved + shared, mask=live[:, None], other=0.0)
    at_keys = convolved + KEY_HEADS * KEY + shared
    keys = tl.load(at_keys, mask=live[:, None], other=0.0)
    column, later = tl.arange(0, PIECE)[None, :], tl.arange(0, PIECE)[:, None]
    between = tl.exp(tl.minimum(total[:, None] - total[None, :], 0.0))
    between = tl.where(later >= column, between, 0.0)
    nothing = tl.zeros((PIECE, PIECE), tl.float32)
    made = product(queries, tl.trans(keys), nothing) * between
    to = asked + (row * VALUE_HEADS + head) * PIECE + column
    tl.store(to, made.to(keys.dtype), mask=live[:, None])

    alike = product(keys, tl.trans(keys), nothing) * between * rate[:, None]
    inverse = _inverse(tl.where(later > column, alike, 0.0), PIECE, LEVELS) * rate[None, :]
    numbers = tl.arange(0, VALUE)[None, :]
    at = convolved + 2 * KEY_HEADS * KEY + head * VALUE + row * CHANNELS + numbers
    values = tl.load(at, mask=live[:, None], other=0.0)
    made = product(inverse.to(keys.dtype), values, tl.zeros((PIECE, VALUE), tl.float32))
    to = learned + (row * VALUE_HEADS + head) * VALUE + numbers
    tl.store(to, made.to(keys.dtype), mask=live[:, None])

    keys = tl.load(at_keys, mask=live[:, None], other=0.0)
    inverse = (inverse * tl.exp(total)[None, :]).to(keys.dtype)
    made = product(inverse, keys, tl.zeros((PIECE, KEY), tl.float32))
    to = known + (row * VALUE_HEADS + head) * KEY + tl.arange(0, KEY)[None, :]
    tl.store(to, made.to(keys.dtype), mask=live[:, None])
