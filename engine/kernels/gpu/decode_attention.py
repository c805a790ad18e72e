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

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.gpu.attending import (
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
from engine.kernels.gpu.attention_plans import DecodePlan, plan_decode
from engine.kernels.gpu.context_parts import add_parts, room_for_parts, store_part, stretch_of
from engine.kernels.gpu.overlapping import launch_dependents, pdl_options, wait_for_previous
from engine.kernels.gpu.paged_call import PagedCall, processors
from engine.kernels.style import AttentionStyle


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

    `memory` [block, layer, part, kv_head, token, width], of the queries' type or float8_e4m3fn;
    `tables` [S, most] int32 block ids;
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
    parts = room_for_parts(plan.splits, sequences, heads, output)
    groups = -(-heads.sharing // plan.rows)
    _decode[heads.kv_heads * groups, sequences, plan.splits](
        queries, memory, tables, lengths, style.sinks, output, *parts,
        call.layer_offset(layer), call.window or 0, *score_factors(style),
        *queries.stride()[:2], tables.stride(0), *call.strides, BLOCK=memory.shape[4],
        SHARING=heads.sharing, GROUPS=groups, VALUE=heads.value_width, PADDED=heads.padded,
        WIDTH=heads.width, REST=heads.rest, SHARED=heads.parts == 1,
        CAPPED=style.softcap is not None, SINKS=style.sinks is not None,
        ROWS=plan.rows, TILE=plan.tile, num_warps=plan.warps, num_stages=plan.stages,
        **pdl_options(),
    )  # fmt: skip
    if plan.splits > 1:
        add_parts(parts, heads, style.sinks, output)
    return output


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
        keys, keys_rest, values = read_tile(query, paged, tokens, seen, LAYOUT, True)
        scores = score_tile(query, keys, keys_rest, factors, CAPPED, REST)
        scores = tl.where(seen[None, :], scores, float("-inf"))
        mixed, top, total = absorb_tile(mixed, top, total, scores, values)
    return mixed, top, total


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
    counts,
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
    low = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    stretch = stretch_of(length - low, splits, TILE, TILE)
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
        if splits > 1:
            tl.store(counts + row, 0, mask=live)
        mixed, total = add_sinks(sinks, head, live, state, SINKS)
        result = divide(mixed, total).to(output.dtype.element_ty)
        store_rows(output, row, live, result, VALUE)
    else:
        rows_in_all = tl.num_programs(1).to(tl.int64) * heads
        count = tl.cdiv(length - low, stretch)
        parts = counts, mixed_parts, sums
        store_part(state, row, splits, split, count, live, parts, rows_in_all, VALUE)
