"""Searches a flat row by many programs, if its most likely tokens do not give the threshold.

The threshold is known to be in an interval of keys. In each of two rounds, all slices of a row
weigh the tokens at or above each of PIVOTS keys of the interval, which leaves a PIVOTS-th of
it. Then each slice finds the largest, noise included, of its tokens that are kept for sure, and
collects those between the last two pivots: hundreds of a vocabulary. One program picks the
threshold among these, and the token.

Slices add to a row's sums by atomics. Sums are of integers, so their order does not matter; the
program that hands a row on (`hand_on`) clears them each time, so a graph can be replayed. If
more tokens are left between two pivots than there is room for, and they are not all equal, the
last program searches the row alone (thresholds.py).
"""

import triton
import triton.language as tl

from engine.kernels.gpu.sampling.floors import floor_of_least, floor_of_row, share
from engine.kernels.gpu.sampling.noise import gumbel
from engine.kernels.gpu.sampling.order import (
    INFINITE,
    LARGEST,
    NOTHING,
    SMALLEST,
    key_in,
    key_of,
    packed,
    token_of,
    value_of,
)
from engine.kernels.gpu.sampling.thresholds import (
    FURTHEST,
    NONE,
    UNITS,
    masses,
    noted,
    scaled,
    threshold,
    weighed,
    what_is_in,
)

SETTLED, KNOWN, BY_COUNT, BY_MASS, ALONE = (tl.constexpr(kind) for kind in range(5))
"""What a row still needs: nothing, no search, either search, or all of it by one program."""

PIVOTS = tl.constexpr(32)
ROUNDS = tl.constexpr(2)  # rounds of weighing
KIND, BEST, FLOOR, GUESS = (tl.constexpr(place) for place in range(4))
COUNTED, LOWEST, HIGHEST = (tl.constexpr(place) for place in range(4, 7))
INTERVALS = tl.constexpr(8)  # each round's low, high, weight beyond it, weight wanted
SUMS = tl.constexpr(24)  # each round's sums
WORK_WIDTH = 24 + 2 * 32
WIDTH = tl.constexpr(WORK_WIDTH)
"""The int64 numbers of a row's work, and their offsets."""


@triton.jit
def hand_on(
    work, ranked, vocabulary, groups, best, whole, most, mass, least, spread,
    GROUPS: tl.constexpr,
):  # fmt: skip
    """Begin a row's work: decide how it is searched, and in which interval.

    The threshold is guessed to be above `bottom`: so far below the largest that, in a normal
    distribution, all tokens are above it, or that the tokens below weigh too little to matter.
    """
    floor, kind = key_of(best), KNOWN
    if (floor < INFINITE) & (floor > NOTHING):
        floor = floor_of_least(best, least)
        if most > 0:
            kind = tl.where(mass < 1.0, ALONE, BY_COUNT)
        elif mass < 1.0:
            kind = BY_MASS
    kind = tl.where(spread > 0, kind, ALONE)
    group = tl.arange(0, GROUPS)
    largest = tl.load(ranked + group, mask=group < groups, other=LARGEST)
    flattest = value_of(tl.min(tl.where(largest > NOTHING, largest, LARGEST), axis=0))
    bottom = best - 3.0 * (best - flattest)
    low = tl.full((), NOTHING, tl.int32)
    if kind == BY_MASS:
        low = key_of(best - FURTHEST)
        weight = (1.0 - mass) * (whole.to(tl.float32) / UNITS) / vocabulary
        bottom = tl.maximum(bottom, best + tl.log(weight))
        bottom = tl.maximum(bottom, value_of(tl.maximum(floor, low)))
    tl.store(work + KIND, kind)
    tl.store(work + BEST, key_of(best))
    tl.store(work + FLOOR, floor)
    tl.store(work + GUESS, key_of(bottom))
    tl.store(work + COUNTED, 0)
    tl.store(work + LOWEST, LARGEST)
    tl.store(work + HIGHEST, SMALLEST)
    _keep(work, 0, low, key_of(best) + 1, 0, most)
    tl.store(
        work + SUMS + tl.arange(0, ROUNDS * PIVOTS), tl.zeros((ROUNDS * PIVOTS,), tl.int64)
    )


@triton.jit
def weigh(
    logits, temperatures, top_p, work, stride, vocabulary, ROUND: tl.constexpr,
    SLICE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Add a slice's weights at or above each pivot of this round to its row's sums."""
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    work += row * WIDTH
    kind = tl.load(work + KIND)
    if (kind == BY_COUNT) | (kind == BY_MASS):
        low, high, beyond, want = _interval(work, kind, tl.load(top_p + row), ROUND)
        if (part == 0) & (ROUND > 0):
            _keep(work, ROUND, low, high, beyond, want)
        pivots = _pivots(work, low, high, ROUND)
        best, floor = value_of(tl.load(work + BEST).to(tl.int32)), tl.load(work + FLOOR)
        logits += row * stride
        temperature = tl.load(temperatures + row)
        begin = part * SLICE
        end = tl.minimum(begin + SLICE, vocabulary)
        if kind == BY_MASS:
            sums, _ = weighed(logits, begin, end, temperature, best, floor, pivots, True, CHUNK)
        else:
            sums, _ = weighed(
                logits, begin, end, temperature, best, floor, pivots, False, CHUNK
            )
        place = work + SUMS + ROUND * PIVOTS + tl.arange(0, PIVOTS)
        tl.atomic_add(place, sums, sem="relaxed")


@triton.jit
def gather(
    logits, temperatures, top_p, keys, work, bests, room, stride, vocabulary, keys_stride,
    SLICE: tl.constexpr, CAPACITY: tl.constexpr,
):  # fmt: skip
    """A slice's largest tokens including noise: of those kept for sure, and of those that may
    be kept. The latter are also collected in the row's `room`.
    """
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    parts = tl.num_programs(0)
    work += row * WIDTH
    kind = tl.load(work + KIND)
    if (kind > SETTLED) & (kind < ALONE):
        floor = tl.load(work + FLOOR)
        low, high = floor, floor
        if kind > KNOWN:
            low, high, beyond, want = _interval(work, kind, tl.load(top_p + row), ROUNDS)
            if part == 0:
                _keep(work, ROUNDS, low, high, beyond, want)
        tokens = part * SLICE + tl.arange(0, SLICE)
        x = scaled(logits + row * stride, tokens, vocabulary, tl.load(temperatures + row))
        here = key_of(x).to(tl.int64)
        kept = (tokens < vocabulary) & (here >= floor)
        within = kept & (here >= low) & (here < high)
        pairs = packed(key_of(x + noise_of(keys + row * keys_stride, tokens)), tokens)
        bests += row * 2 * parts + part
        tl.store(bests, tl.max(tl.where(kept & (here >= high), pairs, NONE), axis=0))
        tl.store(bests + parts, tl.max(tl.where(within, pairs, NONE), axis=0))
        many = tl.sum(within.to(tl.int64), axis=0)
        if many > 0:
            lowest = tl.min(tl.where(within, here, LARGEST), axis=0)
            highest = tl.max(tl.where(within, here, SMALLEST), axis=0)
            tl.atomic_min(work + LOWEST, lowest, sem="relaxed")
            tl.atomic_max(work + HIGHEST, highest, sem="relaxed")
            others = tl.atomic_add(work + COUNTED, many, sem="relaxed")
            noted(here.to(tl.int32), tokens, within, others, room + row * CAPACITY, CAPACITY)


@triton.jit
def settle(
    logits, temperatures, top_k, top_p, min_p, keys, work, bests, room, instead, out, alive,
    stride, vocabulary, parts, keys_stride, PARTS: tl.constexpr, CAPACITY: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Choose the token of a row that was handed on."""
    row = tl.program_id(0).to(tl.int64)
    work += row * WIDTH
    kind = tl.load(work + KIND)
    if kind > SETTLED:
        logits += row * stride
        room += row * CAPACITY
        key = keys + row * keys_stride
        counted = tl.load(work + COUNTED)
        alike = tl.load(work + LOWEST) == tl.load(work + HIGHEST)
        if (kind < ALONE) & ((counted <= CAPACITY) | alike):
            part = tl.arange(0, PARTS)
            bests += row * 2 * parts
            sure = tl.load(bests + part, mask=part < parts, other=NONE)
            others = tl.load(bests + parts + part, mask=part < parts, other=NONE)
            pair = tl.max(sure, axis=0)
            if alike:
                pair = tl.maximum(pair, tl.max(others, axis=0))
            elif counted > 0:
                pair = tl.maximum(pair, _largest_among(work, room, key, kind, CAPACITY))
        else:
            temperature = tl.load(temperatures + row)
            best = value_of(tl.load(work + BEST).to(tl.int32))
            most = tl.load(top_k + row)
            most = tl.where(most >= vocabulary, 0, most)
            floor = floor_of_row(
                logits, room, vocabulary, temperature, best, most, tl.load(top_p + row),
                tl.load(min_p + row), CAPACITY, CHUNK,
            )  # fmt: skip
            pair = _largest_of_row(logits, key, vocabulary, temperature, floor, CHUNK)
        say(pair, instead + row, out + row, alive + row)


@triton.jit
def say(pair, instead, out, alive):
    """Write a row's token, from a packed pair; `instead`, if no token is allowed."""
    living = key_in(pair) > NOTHING
    tl.store(alive, living.to(alive.dtype.element_ty))
    token = tl.where(living, token_of(pair), tl.load(instead))
    tl.store(out, token.to(out.dtype.element_ty))


@triton.jit
def noise_of(key, tokens):
    """The noise of `tokens`, for the row whose key is at `key`."""
    low, high = tl.load(key).to(tl.uint32), tl.load(key + 1).to(tl.uint32)
    return gumbel(tokens, low, high)


@triton.jit
def _keep(work, round_, low, high, beyond, want):
    place = work + INTERVALS + 4 * round_
    tl.store(place, low)
    tl.store(place + 1, high)
    tl.store(place + 2, beyond)
    tl.store(place + 3, want)


@triton.jit
def _interval(work, kind, mass, ROUND: tl.constexpr):
    """A round's interval: the part that the previous round's sums leave of its own."""
    place = work + INTERVALS + 4 * max(ROUND - 1, 0)
    low, high = tl.load(place), tl.load(place + 1)
    beyond, want = tl.load(place + 2), tl.load(place + 3)
    if ROUND > 0:
        pivots = _pivots(work, low, high, ROUND - 1)
        sums = tl.load(work + SUMS + (ROUND - 1) * PIVOTS + tl.arange(0, PIVOTS))
        if (ROUND == 1) & (kind == BY_MASS):
            want = share(tl.max(sums, axis=0), mass)
        enough = sums >= want
        beyond = tl.maximum(beyond, tl.max(tl.where(enough, 0, sums), axis=0))
        above = tl.min(tl.where(enough, high, pivots), axis=0)
        low = tl.max(tl.where(enough, pivots, low), axis=0)
        high = above
    return low, high, beyond, want


@triton.jit
def _pivots(work, low, high, ROUND: tl.constexpr):
    """int64 [PIVOTS], ascending: `low`, at or above which everything is, the key behind it, for
    tokens that tie at `low`, and others evenly spaced by value.
    """
    pivot = tl.arange(0, PIVOTS)
    best, top = value_of(tl.load(work + BEST).to(tl.int32)), value_of((high - 1).to(tl.int32))
    if ROUND == 0:
        bottom = value_of(tl.load(work + GUESS).to(tl.int32))
    else:
        further = top - 4.0 * (best - top)  # the guess was wrong
        bottom = tl.where(low <= NOTHING + 1, further, value_of(low.to(tl.int32)))
    even = key_of(bottom + (top - bottom) * ((pivot - 2).to(tl.float32) / (PIVOTS - 2)))
    pivots = tl.where(pivot < 2, low + pivot, tl.maximum(even.to(tl.int64), low + 1))
    return tl.maximum(low, tl.minimum(pivots, high - 1))


@triton.jit
def _largest_among(work, room, key, kind, CAPACITY: tl.constexpr):
    """The largest, including noise, of the collected tokens that are kept; packed."""
    pairs = what_is_in(room, tl.load(work + COUNTED), CAPACITY)
    place = work + INTERVALS + 4 * ROUNDS
    want = tl.load(place + 3) - tl.load(place + 2)
    here, real = key_in(pairs), pairs != NONE
    best = value_of(tl.load(work + BEST).to(tl.int32))
    weights = tl.where(kind == BY_MASS, masses(here, best), 1)
    found = threshold(here, tl.where(real, weights, 0), want)
    scores = value_of(tl.maximum(here, NOTHING)) + noise_of(key, token_of(pairs))
    noisy = packed(key_of(scores), token_of(pairs))
    return tl.max(tl.where(real & (here >= found), noisy, NONE), axis=0)


@triton.jit
def _largest_of_row(logits, key, vocabulary, temperature, floor, CHUNK: tl.constexpr):
    """The largest, including noise, of the row's tokens that are kept; packed."""
    best = tl.full((CHUNK,), NONE, tl.int64)
    for start in range(0, vocabulary, CHUNK):
        tokens = start + tl.arange(0, CHUNK)
        x = scaled(logits, tokens, vocabulary, temperature)
        kept = (key_of(x) >= floor) & (tokens < vocabulary)
        pairs = packed(key_of(x + noise_of(key, tokens)), tokens)
        best = tl.maximum(best, tl.where(kept, pairs, NONE))
    return tl.max(best, axis=0)
