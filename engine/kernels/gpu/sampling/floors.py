"""Finds the smallest logit of a row that min-p, top-k and top-p keep.

It first looks among the row's most likely tokens, on the chip; if these do not determine it,
it searches the row in memory.
"""

import triton
import triton.language as tl

from engine.kernels.gpu.sampling.order import (
    INFINITE,
    NOTHING,
    SMALLEST,
    key_in,
    key_of,
    value_of,
)
from engine.kernels.gpu.sampling.thresholds import (
    NONE,
    PIVOTS,
    UNITS,
    noted,
    scaled,
    threshold,
    threshold_of_row,
    weighed,
    weights_of,
    what_is_in,
)


@triton.jit
def all_mass(sums, tiles, TILES: tl.constexpr):
    """A row's largest logit, and its total mass int64, from each tile's maximum and mass."""
    tile = tl.arange(0, TILES)
    bests = tl.load(sums + tile, mask=tile < tiles, other=float("-inf"))
    parts = tl.load(sums + tiles + tile, mask=tile < tiles, other=0.0)
    best = value_of(tl.max(key_of(bests), axis=0))
    shares = tl.where(bests == best, parts, parts * tl.exp(bests - best))
    return best, (tl.sum(shares, axis=0) * UNITS).to(tl.int64)


@triton.jit
def likeliest(
    logits, ranked, listed, room, vocabulary, groups, temperature,
    GROUPS: tl.constexpr, GROUP: tl.constexpr, LIKELIEST: tl.constexpr,
    CAPACITY: tl.constexpr,
):  # fmt: skip
    """All tokens of a row from some key on, packed int64 [CAPACITY]; that key; and how many
    they are, which is more than CAPACITY if they do not fit.

    `ranked` [groups] has the largest key of each group. All tokens as large as the LIKELIEST-th
    largest of these are in the groups whose largest key is as large.
    """
    group = tl.arange(0, GROUPS)
    largest = tl.load(ranked + group, mask=group < groups, other=SMALLEST)
    ones = (group < groups).to(tl.int32)
    bound = threshold(largest, ones, LIKELIEST)
    chosen = (largest >= bound) & (group < groups)
    place = tl.cumsum(chosen.to(tl.int32), axis=0) - 1
    tl.store(listed + place, group, mask=chosen)
    some = tl.sum(chosen.to(tl.int32), axis=0)
    tl.debug_barrier()
    count = CAPACITY + 1
    if some <= 2 * LIKELIEST:
        count = 0
        at_once: tl.constexpr = max(1, 2 * CAPACITY // GROUP)
        for begin in range(0, some, at_once):
            which = begin + tl.arange(0, at_once)
            first = tl.load(listed + which, mask=which < some, other=groups) * GROUP
            tokens = first[:, None] + tl.arange(0, GROUP)[None, :]
            tokens = tl.reshape(tokens, [at_once * GROUP])
            keys = key_of(scaled(logits, tokens, vocabulary, temperature))
            within = (keys >= bound) & (tokens < vocabulary)
            count = noted(keys, tokens, within, count, room, CAPACITY)
    return what_is_in(room, tl.minimum(count, CAPACITY), CAPACITY), bound, count


@triton.jit
def floor_among(pairs, bound, count, best, whole, most, mass, least, CAPACITY: tl.constexpr):
    """The floor, if these tokens (all of the row from `bound` on) determine it; else SMALLEST.

    `most`, `mass` and `least` are top-k, top-p and min-p; `whole` is the mass of the row.
    """
    keys, real = key_in(pairs), pairs != NONE
    floor = floor_of_least(best, least)
    known = (count <= CAPACITY) & (key_of(best) < INFINITE) & (key_of(best) > NOTHING)
    if most > 0:
        last = threshold(keys, real.to(tl.int32), most)
        known &= last > SMALLEST
        floor = tl.maximum(floor, last)
    if mass < 1.0:
        weights = tl.where(real, weights_of(keys, best, floor, True), 0)
        total = tl.sum(weights, axis=0)
        if floor < bound:
            known &= (least <= 0.0) & (most <= 0)
            total = whole
        last = threshold(keys, weights, share(total, mass))
        known &= last > SMALLEST
        floor = tl.maximum(floor, last)
    return tl.where(known & (floor >= bound), floor, SMALLEST)


@triton.jit
def floor_of_row(
    logits, room, vocabulary, temperature, best, most, mass, least,
    CAPACITY: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The floor, searched in memory; the largest key itself if that is not a finite number."""
    floor = key_of(best)
    if (floor < INFINITE) & (floor > NOTHING):
        floor = floor_of_least(best, least)
        if most > 0:
            last = threshold_of_row(
                logits, vocabulary, temperature, best, floor, most.to(tl.int64), room, False,
                CAPACITY, CHUNK,
            )  # fmt: skip
            floor = tl.maximum(floor, last)
        if mass < 1.0:
            pivots = tl.full((PIVOTS,), SMALLEST, tl.int64)
            sums, _ = weighed(
                logits, 0, vocabulary, temperature, best, floor, pivots, True, CHUNK
            )
            want = share(tl.max(sums, axis=0), mass)
            last = threshold_of_row(
                logits, vocabulary, temperature, best, floor, want, room, True, CAPACITY, CHUNK
            )
            floor = tl.maximum(floor, last)
    return floor


@triton.jit
def floor_of_least(best, least):
    """Min-p's floor: tokens with at least that part of the most likely token's probability."""
    return tl.where(
        least > 0.0, key_of(best + tl.log(tl.where(least > 0.0, least, 1.0))), NOTHING
    )


@triton.jit
def share(total, mass):
    """int64: the smallest integer that is at least `mass` times `total`; 1 if that is nothing,
    as the likeliest token is always kept.
    """
    return tl.maximum(tl.ceil(total.to(tl.float64) * mass.to(tl.float64)).to(tl.int64), 1)
