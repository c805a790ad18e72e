"""The smallest logit that is kept, by counting instead of sorting.

A threshold is the largest key with enough weight at or above it: `want` tokens for top-k, a
share of the mass for top-p. It is searched digit by digit: sixteen pivots are weighed at once,
and the interval between two of them is searched next. Weights are integers, so sums do not
depend on their order: a token's mass is its probability divided by the most likely token's, in
units of 2^-44. Tokens that tie with the last one kept have its key, and are kept, too.
"""

import triton
import triton.language as tl

from engine.kernels.gpu.sampling.order import (
    NOTHING,
    SMALLEST,
    key_in,
    key_of,
    packed,
    value_of,
)

PIVOTS = tl.constexpr(16)
DIGITS = tl.constexpr(8)  # of an int32 key, each one of PIVOTS
NONE = tl.constexpr(-(2**63))
UNITS = tl.constexpr(2.0**44)  # so that 2^18 equal tokens add up to 2^62
FURTHEST = tl.constexpr(46.0)  # tokens below e^-46 of the likeliest weigh nothing together
BY_VALUE = tl.constexpr(4)  # how often the interval is divided by values, before by keys


@triton.jit
def scaled(logits, offsets, vocabulary, temperature):
    """The logits at `offsets` of a row over its temperature; minus infinity behind the end."""
    read = tl.load(logits + offsets, mask=offsets < vocabulary, other=float("-inf"))
    return tl.div_rn(read, temperature)


@triton.jit
def masses(keys, best):
    """The int64 masses of keys; `best` is the largest logit, a finite one."""
    return (tl.exp(value_of(tl.maximum(keys, NOTHING)) - best) * UNITS).to(tl.int64)


@triton.jit
def weights_of(keys, best, floor, BY_MASS: tl.constexpr):
    """The int64 weights of keys: one each, or their masses; 0 below `floor`."""
    each = masses(keys, best) if BY_MASS else tl.full(keys.shape, 1, tl.int64)
    return tl.where(keys >= floor, each, 0)


@triton.jit
def threshold(keys, weights, want):
    """int32: the largest key at or above which the integer `weights` [n] add up to `want`.

    The smallest int32 if even all of them do not.
    """
    pivot = tl.arange(0, PIVOTS)
    found = tl.full((), SMALLEST, tl.int64)
    for digit in range(DIGITS):
        shift = 4 * (DIGITS - 1 - digit)
        pivots = (found + (pivot.to(tl.int64) << shift)).to(tl.int32)
        above = keys[:, None] >= pivots[None, :]
        sums = tl.sum(tl.where(above, weights[:, None], 0), axis=0)
        reached = tl.sum(((sums >= want) & (pivot > 0)).to(tl.int32), axis=0)
        found += reached.to(tl.int64) << shift
    return found.to(tl.int32)


@triton.jit
def collected(
    logits,
    vocabulary,
    temperature,
    low,
    high,
    room,
    CAPACITY: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """The tokens of a row with keys in [low, high), packed; padded with the smallest int64."""
    tl.debug_barrier()  # other threads may still read `room`
    count = 0
    for start in range(0, vocabulary, CHUNK):
        tokens = start + tl.arange(0, CHUNK)
        keys = key_of(scaled(logits, tokens, vocabulary, temperature)).to(tl.int64)
        chosen = (keys >= low) & (keys < high) & (tokens < vocabulary)
        count = noted(keys.to(tl.int32), tokens, chosen, count, room, CAPACITY)
    return what_is_in(room, count, CAPACITY)


@triton.jit
def what_is_in(room, count, CAPACITY: tl.constexpr):
    """int64 [CAPACITY]: the collected pairs, padded with the smallest int64."""
    tl.debug_barrier()
    place = tl.arange(0, CAPACITY)
    return tl.load(room + place, mask=place < count, other=NONE)


@triton.jit
def noted(keys, tokens, chosen, count, room, CAPACITY: tl.constexpr):
    """Append the chosen tokens to `room` behind `count` others; returns the new count."""
    place = count + tl.cumsum(chosen.to(tl.int32), axis=0) - 1
    tl.store(room + place, packed(keys, tokens), mask=chosen & (place < CAPACITY))
    return count + tl.sum(chosen.to(tl.int32), axis=0)


@triton.jit
def weighed(
    logits,
    begin,
    end,
    temperature,
    best,
    floor,
    pivots,
    BY_MASS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """The weight int64, and the number, of a row's tokens [begin, end) at or above each of
    `pivots` int64 [n].
    """
    sums = tl.zeros((CHUNK, pivots.shape[0]), tl.int64)
    counts = tl.zeros((CHUNK, pivots.shape[0]), tl.int32)
    column = tl.arange(0, CHUNK)
    ahead = scaled(logits, begin + column, end, temperature)
    for start in range(begin, end, CHUNK):
        keys = key_of(ahead)
        ahead = scaled(logits, start + CHUNK + column, end, temperature)
        inside = start + column < end
        weights = tl.where(inside, weights_of(keys, best, floor, BY_MASS), 0)
        above = (keys[:, None].to(tl.int64) >= pivots[None, :]) & inside[:, None]
        sums += tl.where(above, weights[:, None], 0)
        counts += above.to(tl.int32)
    return tl.sum(sums, axis=0), tl.sum(counts, axis=0)


@triton.jit
def threshold_of_row(
    logits, vocabulary, temperature, best, floor, want, room, BY_MASS: tl.constexpr,
    CAPACITY: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """As `threshold`, for a whole row in memory: a few passes, until the tokens between two
    pivots fit into `room`.
    """
    pivot = tl.arange(0, PIVOTS)
    if BY_MASS:
        low, turn = key_of(best - FURTHEST).to(tl.int64), 0
    else:
        low, turn = tl.full((), SMALLEST, tl.int64), BY_VALUE
    high = key_of(best).to(tl.int64) + 1
    beyond = tl.zeros((), tl.int64)  # the weight at or above `high`
    at_low, at_high = vocabulary, vocabulary * 0  # tokens at or above both
    while (at_low - at_high > CAPACITY) & (high - low > 1):
        pivots = low + (high - low) * pivot.to(tl.int64) // PIVOTS
        if turn < BY_VALUE:
            bottom, top = value_of(low.to(tl.int32)), value_of((high - 1).to(tl.int32))
            even = key_of(bottom + (top - bottom) * (pivot.to(tl.float32) / PIVOTS))
            pivots = tl.maximum(low, tl.minimum(even.to(tl.int64), high - 1))
        sums, counts = weighed(
            logits, 0, vocabulary, temperature, best, floor, pivots, BY_MASS, CHUNK
        )
        enough = sums >= want  # always true for the first, which is `low`
        at_low = tl.min(tl.where(enough, counts, vocabulary), axis=0)
        at_high = tl.maximum(at_high, tl.max(tl.where(enough, 0, counts), axis=0))
        beyond = tl.maximum(beyond, tl.max(tl.where(enough, 0, sums), axis=0))
        low = tl.max(tl.where(enough, pivots, low), axis=0)
        high = tl.min(tl.where(enough, high, pivots), axis=0)
        turn += 1
    found = low.to(tl.int32)
    if high - low > 1:
        pairs = collected(logits, vocabulary, temperature, low, high, room, CAPACITY, CHUNK)
        keys = key_in(pairs)
        weights = tl.where(pairs == NONE, 0, weights_of(keys, best, floor, BY_MASS))
        found = threshold(keys, weights, want - beyond)
    return found
