"""Log-probabilities and ranks of chosen tokens, and the most likely tokens, without a sort.

Three launches: each tile's part of a row's softmax sum; then the log-probabilities, of which a
tile keeps its largest and counts those above the chosen token's; then the tiles are merged.
The twin is engine/sampling/logprobs.py: (x - max) - log(sum), ties by token id.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.floor import Floor
from engine.kernels.gpu.sampling.order import (
    NOTHING,
    key_in,
    key_of,
    packed,
    token_of,
    value_of,
)
from engine.kernels.gpu.sampling.thresholds import NONE
from engine.kernels.token_logprobs import MOST_TOP_LOGPROBS, TokenLogprobs

TILE = 4096
TOLD = ("ranks", "tokens", "logprobs")  # begin anywhere


def gather_logprobs(
    logits: Tensor, rows: Tensor, chosen: Tensor, told: TokenLogprobs, tile: int = TILE
) -> None:
    """Fill `told` for some `rows` [n] int32 of `logits` [.., vocabulary] float32.

    `chosen` [n] are these rows' tokens, of any integer type. At most MOST_TOP_LOGPROBS most
    likely tokens, and no more than the vocabulary has. Does not wait for the device.
    """
    count, vocabulary = len(rows), logits.shape[1]
    most = told.tokens.shape[1]
    if not count:
        return
    tiles, wide = triton.cdiv(vocabulary, tile), MOST_TOP_LOGPROBS

    def room(width: int, dtype: torch.dtype) -> Tensor:
        return torch.empty((count, width), dtype=dtype, device=logits.device)

    sums, above = room(2 * tiles, torch.float32), room(tiles, torch.int32)
    best = room(tiles * wide, torch.int64)
    grid, all_tiles = (tiles, count), triton.next_power_of_2(tiles)
    _sum[grid](logits, rows, sums, logits.stride(0), vocabulary, TILE=tile, num_warps=8)
    _rank[grid](
        logits, rows, chosen, sums, above, best, told.chosen, logits.stride(0), vocabulary,
        most, TILE=tile, TILES=all_tiles, WIDE=wide, num_warps=8,
    )  # fmt: skip
    _gather[(count,)](
        above, best, told.ranks, told.tokens, told.logprobs, tiles, most,
        TILES=all_tiles, WIDE=wide, num_warps=4,
    )  # fmt: skip


def gather_logprobs_floor(rows: int, vocabulary: int) -> Floor:
    """Logits are read once; an exponential, a sum and comparisons: some 10 operations each."""
    return Floor(bytes=rows * vocabulary * 4, operations=10 * rows * vocabulary)


@triton.jit
def _sum(logits, rows, sums, stride, vocabulary, TILE: tl.constexpr):
    tile, index = tl.program_id(0), tl.program_id(1).to(tl.int64)
    tiles = tl.num_programs(0)
    token = tile * TILE + tl.arange(0, TILE)
    row = logits + tl.load(rows + index).to(tl.int64) * stride
    x = tl.load(row + token, mask=token < vocabulary, other=float("-inf"))
    best = tl.max(x, axis=0)
    part = tl.sum(tl.where(x == best, 1.0, tl.exp(x - best)), axis=0)
    part = tl.where(best == float("-inf"), 0.0, part)
    tl.store(sums + index * 2 * tiles + tile, best)
    tl.store(sums + index * 2 * tiles + tiles + tile, part)


@triton.jit(do_not_specialize=["most"])
def _rank(
    logits, rows, chosen, sums, above, best, found, stride, vocabulary, most,
    TILE: tl.constexpr, TILES: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    tile, index = tl.program_id(0), tl.program_id(1).to(tl.int64)
    tiles = tl.num_programs(0)
    each = tl.arange(0, TILES)
    bests = tl.load(sums + index * 2 * tiles + each, mask=each < tiles, other=float("-inf"))
    parts = tl.load(sums + index * 2 * tiles + tiles + each, mask=each < tiles, other=0.0)
    largest = tl.max(bests, axis=0)
    shares = tl.where(bests == largest, parts, parts * tl.exp(bests - largest))
    total = tl.log(tl.sum(shares, axis=0))
    row = logits + tl.load(rows + index).to(tl.int64) * stride
    ours = tl.load(row + tl.load(chosen + index).to(tl.int64)) - largest - total
    token = tile * TILE + tl.arange(0, TILE)
    inside = token < vocabulary
    x = tl.load(row + token, mask=inside, other=float("-inf")) - largest - total
    higher = tl.sum((inside & (x > ours)).to(tl.int32), axis=0)
    tl.store(above + index * tiles + tile, higher)
    if tile == 0:
        tl.store(found + index, ours)
    pairs = tl.where(inside, packed(key_of(x), token), NONE)
    for place in range(most):
        one = tl.max(pairs, axis=0)
        tl.store(best + (index * tiles + tile) * WIDE + place, one)
        pairs = tl.where(pairs == one, NONE, pairs)


@triton.jit(do_not_specialize=["most"], do_not_specialize_on_alignment=TOLD)
def _gather(
    above, best, ranks, tokens, logprobs, tiles, most, TILES: tl.constexpr, WIDE: tl.constexpr
):
    index = tl.program_id(0).to(tl.int64)
    each = tl.arange(0, TILES)
    higher = tl.load(above + index * tiles + each, mask=each < tiles, other=0)
    tl.store(ranks + index, tl.sum(higher, axis=0) + 1)
    flat = tl.arange(0, TILES * WIDE)
    there = (flat // WIDE < tiles) & (flat % WIDE < most)
    pairs = tl.load(best + index * tiles * WIDE + flat, mask=there, other=NONE)
    for place in range(most):
        one = tl.max(pairs, axis=0)
        tl.store(tokens + index * most + place, token_of(one))
        tl.store(logprobs + index * most + place, value_of(tl.maximum(key_in(one), NOTHING)))
        pairs = tl.where(pairs == one, NONE, pairs)
