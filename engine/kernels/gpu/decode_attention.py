"""Attention of one query per sequence over paged KV, split over the context.

    softmax(scale * query . keys) values        [S, heads, width] -> [S, heads * value_width]

A program reads a stretch of one sequence's keys and values of one KV head, for all query heads
that share them, so each byte of KV is read once (Dao et al. 2023, "Flash-Decoding"). How many
stretches there are is the host's choice, from what it knows without asking the device; how long
each is follows from the length that is found on the device, so one captured graph is balanced
for short contexts and for long ones. Where a sequence takes more than one stretch, each leaves
its part in float32, and a second, small kernel adds the parts up, always in the same order.

Twin: engine/attention/paged.py. Floor: `decode_floor`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.gpu.attending import (
    IN_LOG2,
    absorb_tile,
    add_sinks,
    divide,
    load_query,
    nothing_seen,
    read_tile,
    score_factors,
    score_tile,
    store_rows,
)
from engine.kernels.gpu.attention_plans import MOST_SPLITS, DecodePlan, plan_decode
from engine.kernels.gpu.overlapping import launch_dependents, pdl_options, wait_for_previous
from engine.kernels.gpu.paged_call import Heads, PagedCall, processors
from engine.kernels.style import AttentionStyle

REDUCED_NUMBERS = 4096


def decode_attention(
    queries: Tensor,
    memory: Tensor,
    layer: int,
    tables: Tensor,
    lengths: Tensor,
    style: AttentionStyle,
    value_width: int | None = None,
    *,
    out: Tensor | None = None,
    plan: DecodePlan | None = None,
) -> Tensor:
    """[S, heads, width], each the last of its sequence, to [S, heads * value_width].

    `memory` [block, layer, part, kv_head, token, width]; `tables` [S, most] int32 block ids;
    `lengths` [S] int32 tokens, the query's own included: a row with 0 reads nothing and gives
    zeros. Nothing is read of a table behind its length, nor of tokens before the window.
    `out` is written to, if given, and contiguous. `plan` instead of `plan_decode`'s. Raises
    ValueError for what does not fit together.
    """
    call = PagedCall.of(queries, memory, tables, style, value_width)
    heads, sequences = call.heads, len(queries)
    if lengths.shape != (sequences,) or len(tables) != sequences:
        raise ValueError(
            f"{len(tables)} tables and {len(lengths)} lengths for {sequences} queries"
        )
    output = call.output(queries, out)
    if not sequences:
        return output
    bound = min(call.most_tokens, call.window or call.most_tokens)
    plan = plan or plan_decode(heads, sequences, bound, processors(queries.device))
    mixed, sums = _room_for_parts(plan, sequences, heads, output)
    groups = -(-heads.sharing // plan.rows)
    window = call.window or 0
    _decode[heads.kv_heads * groups, sequences, plan.splits](
        queries, memory, tables, lengths, style.sinks, output, mixed, sums,
        call.layer_offset(layer), window, *score_factors(style), *queries.stride()[:2],
        tables.stride(0), *call.strides, BLOCK=memory.shape[4], SHARING=heads.sharing,
        GROUPS=groups, VALUE=heads.value_width, PADDED=heads.padded,
        WIDTH=heads.width, REST=heads.rest, SHARED=heads.parts == 1,
        CAPPED=style.softcap is not None, SINKS=style.sinks is not None,
        ROWS=plan.rows, TILE=plan.tile, num_warps=plan.warps, num_stages=plan.stages,
        **pdl_options(),
    )  # fmt: skip
    if plan.splits > 1:
        columns = min(128, heads.padded)
        _add_parts[heads.heads, sequences, -(-heads.value_width // columns)](
            lengths, style.sinks, output, mixed, sums, plan.splits, window,
            VALUE=heads.value_width, COLUMNS=columns, SPLITS=MOST_SPLITS, TILE=plan.tile,
            STEP=min(MOST_SPLITS, REDUCED_NUMBERS // columns),
            SINKS=style.sinks is not None, num_warps=4, **pdl_options(),
        )  # fmt: skip
    return output


def _room_for_parts(
    plan: DecodePlan, sequences: int, heads: Heads, output: Tensor
) -> tuple[Tensor, Tensor]:
    """Values mixed [S, heads, splits, value_width]; highest and sum [2, S, heads, splits]."""
    if plan.splits == 1:  # not looked at, but one kernel with others
        nothing = output.new_empty(1, dtype=torch.float32)
        return nothing, nothing
    rows = sequences, heads.heads, plan.splits
    mixed = output.new_empty(*rows, heads.value_width, dtype=torch.float32)
    return mixed, output.new_empty(2, *rows, dtype=torch.float32)


@triton.jit
def _stretch(length, window, splits, TILE: tl.constexpr):
    """The first token that is seen, and how many of a stretch: whole tiles, at least one."""
    low = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    return low, tl.cdiv(tl.cdiv(length - low, splits), TILE) * TILE


@triton.jit
def _read_stretch(
    query, paged, begin, end, factors, CAPPED: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, LAYOUT: tl.constexpr,
):  # fmt: skip
    """The state behind the tokens from `begin` to before `end`, tile by tile."""
    _, _, PADDED, _, REST, _ = LAYOUT
    mixed, top, total = nothing_seen(ROWS, PADDED)
    for first in tl.range(begin, end, TILE):
        tokens = first + tl.arange(0, TILE)
        seen = tokens < end
        keys, keys_rest, values = read_tile(paged, tokens, seen, LAYOUT, True)
        scores = score_tile(query, keys, keys_rest, factors, CAPPED, REST)
        scores = tl.where(seen[None, :], scores, float("-inf"))
        mixed, top, total = absorb_tile(mixed, top, total, scores, values)
    return mixed, top, total


@triton.jit
def _store_part(
    state, row, splits, split, live, mixed_parts, sums, rows_in_all, VALUE: tl.constexpr
):
    """What `_add_parts` adds up: `mixed_parts` [row, split, VALUE], `sums` [2, row, split]."""
    mixed, top, total = state
    part = row * splits + split
    store_rows(mixed_parts, part, live, mixed, VALUE)
    tl.store(sums + part, top, mask=live)
    tl.store(sums + rows_in_all * splits + part, total, mask=live)


@triton.jit(  # slices of a batch's numbers lie anywhere, and are one kernel
    do_not_specialize=["window", "table_stride"],
    do_not_specialize_on_alignment=["tables", "lengths", "sinks"],
)
def _decode(
    queries,
    memory,
    tables,
    lengths,
    sinks,
    output,
    mixed_parts,
    sums,
    layer_offset,
    window,  # 0: none
    scale,
    cap,
    query_stride,
    head_stride,
    table_stride,
    block_stride,
    kv_head_stride,
    token_stride,
    value_offset,
    BLOCK: tl.constexpr,
    SHARING: tl.constexpr,
    GROUPS: tl.constexpr,
    VALUE: tl.constexpr,
    PADDED: tl.constexpr,
    WIDTH: tl.constexpr,
    REST: tl.constexpr,
    SHARED: tl.constexpr,
    CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    OVERLAPPED: tl.constexpr = False,
):
    """A program: stretch `z` of sequence `y`, for a group of the query heads of a KV head.

    Groups of one KV head are neighbours, so that all but the first find its rows in L2.
    """
    launch_dependents(OVERLAPPED)
    wait_for_previous(OVERLAPPED)
    kv_head, group = tl.program_id(0) // GROUPS, tl.program_id(0) % GROUPS
    sequence, split, splits = tl.program_id(1), tl.program_id(2), tl.num_programs(2)
    length = tl.load(lengths + sequence)
    low, stretch = _stretch(length, window, splits, TILE)
    begin = low + split * stretch
    end = tl.minimum(begin + stretch, length)
    if begin >= end and split > 0:
        return

    LAYOUT: tl.constexpr = (BLOCK, VALUE, PADDED, WIDTH, REST, SHARED)
    rows = group * ROWS + tl.arange(0, ROWS)
    live, head = rows < SHARING, kv_head * SHARING + rows
    ours = queries + sequence.to(tl.int64) * query_stride
    query = load_query(ours, head.to(tl.int64) * head_stride, live, LAYOUT)
    memory += layer_offset + kv_head.to(tl.int64) * kv_head_stride
    table = tables + sequence.to(tl.int64) * table_stride
    paged = (memory, table, block_stride, token_stride, value_offset)
    state = _read_stretch(
        query, paged, begin, end, (scale, cap), CAPPED, ROWS, TILE, LAYOUT
    )  # fmt: skip

    heads = SHARING * (tl.num_programs(0) // GROUPS)
    row = sequence.to(tl.int64) * heads + head
    if stretch >= length - low:  # it is the only one
        mixed, total = add_sinks(sinks, head, live, state, SINKS)
        result = divide(mixed, total).to(output.dtype.element_ty)
        store_rows(output, row, live, result, VALUE)
    else:
        rows_in_all = tl.num_programs(1).to(tl.int64) * heads
        _store_part(state, row, splits, split, live, mixed_parts, sums, rows_in_all, VALUE)


@triton.jit(
    do_not_specialize=["splits", "window"],
    do_not_specialize_on_alignment=["lengths", "sinks"],
)
def _add_parts(
    lengths,
    sinks,
    output,
    mixed_parts,
    sums,
    splits,
    window,
    VALUE: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPLITS: tl.constexpr,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
    SINKS: tl.constexpr,
    OVERLAPPED: tl.constexpr = False,
):
    """A program: one query head of one sequence, and COLUMNS of its value."""
    launch_dependents(OVERLAPPED)
    wait_for_previous(OVERLAPPED)
    head, sequence, slice_ = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + sequence)
    low, stretch = _stretch(length, window, splits, TILE)
    if stretch >= length - low:
        return  # its only part is the result, and already there
    used = tl.cdiv(length - low, stretch)
    row = sequence.to(tl.int64) * tl.num_programs(0) + head
    first = row * splits
    behind = tl.num_programs(1).to(tl.int64) * tl.num_programs(0) * splits

    parts = tl.arange(0, SPLITS)
    tops = tl.load(sums + first + parts, mask=parts < used, other=float("-inf"))
    totals = tl.load(sums + behind + first + parts, mask=parts < used, other=0.0)
    top, sink = tl.max(tops, 0), float("-inf")
    if SINKS:
        sink = tl.load(sinks + head).to(tl.float32) * IN_LOG2
        top = tl.maximum(top, sink)
    total = tl.sum(totals * tl.exp2(tops - top), 0) + tl.exp2(sink - top)

    columns = slice_ * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < VALUE
    mixed = tl.zeros((COLUMNS,), tl.float32)
    for begin in tl.range(0, used, STEP):
        some_parts = begin + tl.arange(0, STEP)
        keep = some_parts < used
        at = tl.load(sums + first + some_parts, mask=keep, other=float("-inf"))
        some = mixed_parts + (first + some_parts)[:, None] * VALUE + columns[None, :]
        some = tl.load(some, mask=keep[:, None] & inside[None, :], other=0.0)
        mixed += tl.sum(some * tl.exp2(at - top)[:, None], 0)
    result = (mixed / total).to(output.dtype.element_ty)
    tl.store(output + row * VALUE + columns, result, mask=inside)
