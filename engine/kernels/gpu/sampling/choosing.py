"""Samples a token for each row: temperature, min-p, top-k, top-p, Gumbel noise, largest.

The first launch reads all logits, in tiles. For rows without truncation it adds the noise and
keeps each tile's largest; for others it keeps the largest of each small group. In the second
launch each program takes one row. The 256th largest of the groups' maxima is a lower bound of
the row's 256 most likely tokens, so these are in 256 groups, and only those are read again. If
the threshold is among them, as it mostly is, all the rest happens on the chip; if not, the row
is searched in memory by many programs in further launches (spreading.py), which are made only
if some row's settings may need them.

The reference is engine/sampling/truncation.py and noise.py. Sums of probabilities are exact
here, and rounded there: a token may differ if top-p is within 1e-6 of such a sum, or if two
scores are as close.
"""

from dataclasses import dataclass
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.floor import Floor
from engine.kernels.gpu.sampling.floors import all_mass, floor_among, likeliest
from engine.kernels.gpu.sampling.order import (
    NOTHING,
    SMALLEST,
    key_in,
    key_of,
    packed,
    token_of,
    value_of,
)
from engine.kernels.gpu.sampling.spreading import (
    KIND,
    ROUNDS,
    SETTLED,
    WIDTH,
    WORK_WIDTH,
    gather,
    hand_on,
    noise_of,
    say,
    settle,
    weigh,
)
from engine.kernels.gpu.sampling.thresholds import NONE, scaled
from engine.kernels.searching import MOST_LIKELIEST, Search


@dataclass(frozen=True, slots=True)
class Sizes:
    """Powers of two. Tokens of a tile and of a group; groups that are read again; tokens that
    fit on the chip; tokens of a row that are read at a time; tokens of one program's slice of a
    flat row, and those of them that it weighs at a time.
    """

    tile: int = 4096
    group: int = 128
    likeliest: int = MOST_LIKELIEST
    capacity: int = 1024
    chunk: int = 512
    slice: int = 1024
    step: int = 128


def choose(
    logits: Tensor,
    temperatures: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    keys: Tensor,
    *,
    instead: Tensor | None = None,
    out: Tensor | None = None,
    alive: Tensor | None = None,
    sizes: Sizes = Sizes(),
    search: Search = Search.ANYWHERE,
) -> Tensor:
    """[rows] int64: a token per row of `logits` [rows, vocabulary] float32, any row stride.

    `temperatures`, `top_p`, `min_p` [rows] float32; temperature 0 takes the largest logit, the
    first of several. `top_k` [rows] int32, 0: all. `keys` [rows, 2] integers, the halves of
    noise_key (engine/sampling/noise.py). Everything is on one device, and stays there.

    If a row has no token left to choose, its token is that of `instead` [rows] int32, else 0,
    and its `alive` [rows] becomes 0. `alive` and `out`, if given, are written to, and may have
    any integer type. A row with NaNs yields the first of them, one with infinities the first
    infinity. `search`, from `search_for`, saves launches and changes no token.
    """
    rows, vocabulary = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device) if out is None else out
    if alive is None:
        alive = torch.empty(rows, dtype=torch.int32, device=logits.device)
    if instead is None:
        instead = torch.zeros(rows, dtype=torch.int32, device=logits.device)
    if not rows:
        return tokens
    tiles, groups = triton.cdiv(vocabulary, sizes.tile), triton.cdiv(vocabulary, sizes.group)
    room = partial(_room, logits)
    bests, ranked = room(tiles, torch.int64), room(groups, torch.int32)
    sums, work = room(2 * tiles, torch.float32), room(WORK_WIDTH, torch.int64)
    settings, listed = (temperatures, top_k, top_p, min_p, keys), room(groups, torch.int32)
    among, said = room(sizes.capacity, torch.int64), (instead, tokens, alive)
    _survey[(tiles, rows)](
        logits, *settings, bests, ranked, sums, logits.stride(0), vocabulary, groups,
        keys.stride(0), TILE=sizes.tile, GROUP=sizes.group, num_warps=8,
    )  # fmt: skip
    _draw[(rows,)](
        logits, *settings, bests, ranked, sums, listed, among, work, *said, logits.stride(0),
        vocabulary, tiles, groups, keys.stride(0), int(search == Search.ANYWHERE),
        TILES=triton.next_power_of_2(tiles), GROUPS=triton.next_power_of_2(groups),
        GROUP=sizes.group, LIKELIEST=sizes.likeliest, CAPACITY=sizes.capacity, num_warps=16,
    )  # fmt: skip
    if search > Search.NONE:
        _search_rows(logits, settings, work, said, sizes, spread=search == Search.ANYWHERE)
    return tokens


def _search_rows(
    logits: Tensor,
    settings: tuple[Tensor, ...],
    work: Tensor,
    said: tuple[Tensor, Tensor, Tensor],
    sizes: Sizes,
    *,
    spread: bool,
) -> None:
    """Launch the searches of rows that the second launch has handed on; write their tokens."""
    rows, vocabulary = logits.shape
    temperatures, _, top_p, _, keys = settings
    parts, stride = triton.cdiv(vocabulary, sizes.slice), logits.stride(0)
    grid, bests = (parts, rows), _room(logits, 2 * parts, torch.int64)
    noted = _room(logits, sizes.capacity, torch.int64)
    if spread:
        for turn in range(ROUNDS.value):
            weigh[grid](
                logits, temperatures, top_p, work, stride, vocabulary, ROUND=turn,
                SLICE=sizes.slice, CHUNK=min(sizes.step, sizes.slice), num_warps=4,
            )  # fmt: skip
        gather[grid](
            logits, temperatures, top_p, keys, work, bests, noted, stride, vocabulary,
            keys.stride(0), SLICE=sizes.slice, CAPACITY=sizes.capacity, num_warps=4,
        )  # fmt: skip
    settle[(rows,)](
        logits, *settings, work, bests, noted, *said, stride, vocabulary, parts,
        keys.stride(0), PARTS=triton.next_power_of_2(parts), CAPACITY=sizes.capacity,
        CHUNK=sizes.chunk, num_warps=16,
    )  # fmt: skip


def _room(logits: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """An uninitialized tensor [rows, width] on the logits' device."""
    return torch.empty((len(logits), width), dtype=dtype, device=logits.device)


def choose_floor(rows: int, vocabulary: int, *, drawn: bool = True) -> Floor:
    """Logits are read once. Noise takes some 70 operations for each: negligible at the rate of
    tensor cores, but at that of the other units twice as long as reading.
    """
    operations = 70 if drawn else 2
    return Floor(
        bytes=rows * vocabulary * 4 + rows * 32, operations=operations * rows * vocabulary
    )


@triton.jit
def _survey(
    logits, temperatures, top_k, top_p, min_p, keys, bests, ranked, sums, stride, vocabulary,
    groups, keys_stride, TILE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    tile, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    tiles = tl.num_programs(0)
    temperature = tl.load(temperatures + row)
    warm = temperature > 0
    begin = tile * TILE
    tokens = begin + tl.arange(0, TILE)
    x = scaled(logits + row * stride, tokens, vocabulary, tl.where(warm, temperature, 1.0))
    if warm & _cuts(tl.load(top_k + row), tl.load(top_p + row), tl.load(min_p + row)):
        largest = tl.max(tl.reshape(key_of(x), [TILE // GROUP, GROUP]), axis=1)
        group = begin // GROUP + tl.arange(0, TILE // GROUP)
        tl.store(ranked + row * groups + group, largest, mask=group < groups)
        best = value_of(tl.max(largest, axis=0))
        mass = tl.sum(tl.exp(tl.where(x == best, 0.0, x - best)), axis=0)
        tl.store(sums + row * 2 * tiles + tile, best)
        tl.store(sums + row * 2 * tiles + tiles + tile, mass)
    else:
        if warm:
            x += noise_of(keys + row * keys_stride, tokens)
        pairs = tl.where(tokens < vocabulary, packed(key_of(x), tokens), NONE)
        tl.store(bests + row * tiles + tile, tl.max(pairs, axis=0))


@triton.jit
def _cuts(top_k, top_p, min_p):
    return (top_k > 0) | (top_p < 1.0) | (min_p > 0.0)


@triton.jit(do_not_specialize=["spread"])
def _draw(
    logits, temperatures, top_k, top_p, min_p, keys, bests, ranked, sums, listed, room, work,
    instead, out, alive, stride, vocabulary, tiles, groups, keys_stride, spread,
    TILES: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr, LIKELIEST: tl.constexpr,
    CAPACITY: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures + row)
    most, mass, least = tl.load(top_k + row), tl.load(top_p + row), tl.load(min_p + row)
    work += row * WIDTH
    found = True
    if (temperature > 0) & _cuts(most, mass, least):
        most = tl.where(most >= vocabulary, 0, most)
        ranked += row * groups
        best, whole = all_mass(sums + row * 2 * tiles, tiles, TILES)
        pairs, bound, count = likeliest(
            logits + row * stride, ranked, listed + row * groups, room + row * CAPACITY,
            vocabulary, groups, temperature, GROUPS, GROUP, LIKELIEST, CAPACITY,
        )  # fmt: skip
        floor = floor_among(pairs, bound, count, best, whole, most, mass, least, CAPACITY)
        found = floor > SMALLEST
        pair = _largest_among(pairs, keys + row * keys_stride, floor)
        if floor <= SMALLEST:
            hand_on(
                work, ranked, vocabulary, groups, best, whole, most, mass, least, spread, GROUPS
            )
    else:
        tile = tl.arange(0, TILES)
        each = tl.load(bests + row * tiles + tile, mask=tile < tiles, other=NONE)
        pair = tl.max(each, axis=0)
    if found:
        tl.store(work + KIND, SETTLED)
        say(pair, instead + row, out + row, alive + row)


@triton.jit
def _largest_among(pairs, key, floor):
    """The largest of those from `floor` on, including noise; packed."""
    tokens = token_of(pairs)
    scores = value_of(tl.maximum(key_in(pairs), NOTHING)) + noise_of(key, tokens)
    kept = key_in(pairs) >= floor
    return tl.max(tl.where(kept, packed(key_of(scores), tokens), NONE), axis=0)
