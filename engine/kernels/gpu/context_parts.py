"""Attention that is split over the context: lengths of stretches, storing parts, adding them.

A row is one query of one head. Its context may be divided into stretches, each processed by
another program ("Flash-Decoding", Dao et al. 2023). A program stores its part in float32, with
its highest score and the sum of its weights; a second, small kernel adds up the parts, always
in the same order. The host chooses how many stretches there may be; their length follows from
the length of the context, which only the device knows. Therefore the program that stores a
row's first part also stores how many parts the row has.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.gpu.attending import IN_LOG2, store_rows
from engine.kernels.gpu.attention_plans import MOST_SPLITS
from engine.kernels.gpu.overlapping import launch_dependents, pdl_options, wait_for_previous
from engine.kernels.gpu.paged_call import Heads

PARTS_AT_ONCE = 32
MOST_COLUMNS = 64


class Parts(NamedTuple):
    """Room for the parts of all rows, up to one per split; not initialized."""

    counts: Tensor  # [rows, heads] int32: parts; 0: the result is stored already
    mixed: Tensor  # [rows, heads, splits, value_width] values, in units of 2^highest
    sums: Tensor  # [2, rows, heads, splits] highest score, and sum of weights


def room_for_parts(splits: int, rows: int, heads: Heads, output: Tensor) -> Parts:
    """Room for `splits` parts; with one split, unused placeholders of the same types."""
    new = output.new_empty
    if splits == 1:
        nothing = new(1, dtype=torch.float32)
        return Parts(new(1, dtype=torch.int32), nothing, nothing)
    sizes = rows, heads.heads
    return Parts(
        new(sizes, dtype=torch.int32),
        new(*sizes, splits, heads.value_width, dtype=torch.float32),
        new(2, *sizes, splits, dtype=torch.float32),
    )


def add_parts(parts: Parts, heads: Heads, sinks: Tensor | None, output: Tensor) -> None:
    """Add up the parts of each row into `output`; sinks are added here, once."""
    columns = min(MOST_COLUMNS, heads.padded)
    _add_parts[parts.counts.numel(), -(-heads.value_width // columns)](
        parts.counts, sinks, output, parts.mixed, parts.sums, parts.mixed.shape[2], heads.heads,
        VALUE=heads.value_width, COLUMNS=columns, SPLITS=MOST_SPLITS, STEP=PARTS_AT_ONCE,
        SINKS=sinks is not None, num_warps=4, **pdl_options(),
    )  # fmt: skip


@triton.jit
def stretch_of(length, splits, shortest, TILE: tl.constexpr):
    """Tokens in a stretch of a context of `length`: whole tiles, and at least `shortest`."""
    return tl.maximum(tl.cdiv(tl.cdiv(length, splits), TILE) * TILE, shortest)


@triton.jit
def store_part(state, row, splits, split, count, live, parts, all_rows, VALUE: tl.constexpr):
    """Store part `split` of the `count` parts of each row; `parts` as in Parts."""
    counts, mixed_parts, sums = parts
    mixed, top, total = state
    part = row * splits + split
    store_rows(mixed_parts, part, live, mixed, VALUE)
    tl.store(sums + part, top, mask=live)
    tl.store(sums + all_rows * splits + part, total, mask=live)
    tl.store(counts + row, count, mask=live & (split == 0))


@triton.jit(
    do_not_specialize=["splits", "heads"],
    do_not_specialize_on_alignment=["sinks"],
)
def _add_parts(
    counts,
    sinks,
    output,
    mixed_parts,
    sums,
    splits,
    heads,
    VALUE: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPLITS: tl.constexpr,
    STEP: tl.constexpr,
    SINKS: tl.constexpr,
    OVERLAPPED: tl.constexpr = False,
):
    """A program adds up one row, COLUMNS of its value.

    It takes about as long as memory takes to answer once, so the first STEP parts are loaded
    before it is known how many there are. What others contain can be anything.
    """
    launch_dependents(OVERLAPPED)
    wait_for_previous(OVERLAPPED)
    row, slice_ = tl.program_id(0).to(tl.int64), tl.program_id(1)
    first = row * splits
    behind = tl.num_programs(0).to(tl.int64) * splits
    columns = slice_ * COLUMNS + tl.arange(0, COLUMNS)
    mixed_parts += columns[None, :]
    parts, some = tl.arange(0, SPLITS), tl.arange(0, STEP)
    inside = columns < VALUE
    used = tl.load(counts + row)
    tops = tl.load(sums + first + parts, mask=parts < splits, other=0.0)
    totals = tl.load(sums + behind + first + parts, mask=parts < splits, other=0.0)
    some_tops = tl.load(sums + first + some, mask=some < splits, other=0.0)
    keep = (some < splits)[:, None] & inside[None, :]
    values = tl.load(mixed_parts + (first + some)[:, None] * VALUE, mask=keep, other=0.0)
    if used == 0:
        return

    tops = tl.where(parts < used, tops, float("-inf"))
    top, sink = tl.max(tops, 0), float("-inf")
    if SINKS:
        sink = tl.load(sinks + row % heads).to(tl.float32) * IN_LOG2
        top = tl.maximum(top, sink)
    totals = tl.where(parts < used, totals, 0.0) * tl.exp2(tops - top)
    total = tl.sum(totals, 0) + tl.exp2(sink - top)

    weights = tl.exp2(tl.where(some < used, some_tops, float("-inf")) - top)
    mixed = tl.sum(tl.where((some < used)[:, None], values, 0.0) * weights[:, None], 0)
    for begin in tl.range(STEP, used, STEP):
        more = first + begin + some
        keep = begin + some < used
        some_tops = tl.load(sums + more, mask=keep, other=0.0)
        keep = keep[:, None] & inside[None, :]
        values = tl.load(mixed_parts + more[:, None] * VALUE, mask=keep, other=0.0)
        mixed += tl.sum(values * tl.exp2(some_tops - top)[:, None], 0)
    result = (mixed / total).to(output.dtype.element_ty)
    tl.store(output + row * VALUE + columns, result, mask=inside)
