"""Attention of chunks of prompts over paged KV, each behind what is cached of its sequence.

    softmax(scale * query . keys) values      [T, heads, width] -> [T, heads * value_width]

A program's rows are some neighbouring tokens of one sequence, each for all query heads that
share a KV head: what those read of keys and values is read once, and a chunk of four tokens
still makes a tile. Of the keys that it passes, most are seen by all its rows and are not
masked; only the tiles at the window's edge and at the diagonal are (Dao 2023,
"FlashAttention-2").

Which tile is whose is found on the device (`chunk_tiles`). The last tiles of sequences, which
have the most to read, start first.

Where tiles are fewer than the device has room for, as of a short chunk behind a long context,
what each sees is read in stretches, whose parts are added up as decode's (`context_parts`).

Twin: engine/attention/paged.py. Floor: `prefill_floor`.
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
from engine.kernels.gpu.attention_plans import ChunkSizes, PrefillPlan, plan_prefill
from engine.kernels.gpu.chunk_tiles import place_of, tiles_of
from engine.kernels.gpu.context_parts import add_parts, room_for_parts, store_part, stretch_of
from engine.kernels.gpu.paged_call import PagedCall, processors
from engine.kernels.style import AttentionStyle


def prefill_attention(
    queries: Tensor,
    memory: Tensor,
    layer: int,
    tables: Tensor,
    firsts: Tensor,
    lengths: Tensor,
    longest: int,
    style: AttentionStyle,
    value_width: int | None = None,
    *,
    out: Tensor | None = None,
    plan: PrefillPlan | None = None,
) -> Tensor:
    """[T, heads, width] queries of S sequences behind one another, to [T, heads * value_width].

    Sequence s has the rows from `firsts[s]` to `firsts[s + 1]` ([S + 1] int32), the last of its
    `lengths[s]` tokens ([S] int32), whose KV is in `memory` already. No sequence has more than
    `longest` rows. Rows behind `firsts[S]` are padding: they are not read, and give zeros.
    Otherwise as `decode_attention`.
    """
    call = PagedCall.of(queries, memory, tables, style, value_width)
    heads, sequences = call.heads, len(lengths)
    if firsts.shape != (sequences + 1,) or len(tables) != sequences:
        told = f"{len(tables)} tables and {len(firsts)} firsts"
        raise ValueError(f"{told} for {sequences} lengths")
    output = call.output(queries, out)
    if not len(queries) or not sequences:
        return output
    sizes = ChunkSizes(len(queries), sequences, longest, call.most_tokens, call.window)
    plan = plan or plan_prefill(heads, sizes, processors(queries.device))
    parts = room_for_parts(plan.splits, len(queries), heads, output)
    groups = -(-heads.sharing // plan.packed)
    tiles = tiles_of(len(queries), sequences, plan.span)
    _prefill[tiles * heads.kv_heads * groups, plan.splits](
        queries, memory, tables, firsts, lengths, style.sinks, output, *parts, sequences,
        len(queries), plan.shortest, call.layer_offset(layer), call.window or 0,
        *score_factors(style),
        *queries.stride()[:2], tables.stride(0), *call.strides, heads.kv_heads,
        BLOCK=memory.shape[4], SHARING=heads.sharing, PACKED=plan.packed, GROUPS=groups,
        VALUE=heads.value_width, PADDED=heads.padded, WIDTH=heads.width, REST=heads.rest,
        SHARED=heads.parts == 1, WINDOWED=call.window is not None,
        CAPPED=style.softcap is not None, SINKS=style.sinks is not None,
        ROWS=plan.rows, TILE=plan.tile, SPLIT=plan.splits > 1,
        num_warps=plan.warps, num_stages=plan.stages,
    )  # fmt: skip
    if plan.splits > 1:
        add_parts(parts, heads, style.sinks, output)
    return output


@triton.jit
def _pad(
    output, counts, first, num_rows, head, real, ROWS, PACKED, num_heads, LAYOUT: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    """Zeros for the heads of a tile of the rows from `first` on, which are of no sequence."""
    _, VALUE, PADDED, _, _, _ = LAYOUT
    spare = first + tl.arange(0, ROWS) // PACKED
    nothing = tl.zeros((ROWS, PADDED), output.dtype.element_ty)
    row, there = spare.to(tl.int64) * num_heads + head, real & (spare < num_rows)
    store_rows(output, row, there, nothing, VALUE)
    if SPLIT:
        tl.store(counts + row, 0, mask=there)


@triton.jit
def _regions(first, last, window, WINDOWED: tl.constexpr, TILE: tl.constexpr):
    """Of tokens that are read for the rows at `first` to `last`: where they begin, from where
    on all rows see all of them, and from where on that ends; whole tiles apart.
    """
    low, edge = 0, 0
    if WINDOWED:
        low = tl.maximum(first - window + 1, 0)
        edge = low + tl.cdiv(tl.maximum(last - window + 1 - low, 0), TILE) * TILE
    return low, edge, edge + tl.maximum(first + 1 - edge, 0) // TILE * TILE


@triton.jit
def _pass_keys(
    state, low, end, query, paged, positions, last, window, factors,
    CAPPED: tl.constexpr, WINDOWED: tl.constexpr, TILE: tl.constexpr, LAYOUT: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """The state behind the tokens from `low` to before `end`, tile by tile, of which those
    behind `last` are not there. `positions` [ROWS] say what a row sees.

    Not MASKED: these are whole tiles, and all rows see all of them.
    """
    _, _, _, _, REST, _ = LAYOUT
    mixed, top, total = state
    for first in tl.range(low, end, TILE):
        tokens = first + tl.arange(0, TILE)
        keys, rest, values = read_tile(query, paged, tokens, tokens <= last, LAYOUT, MASKED)
        scores = score_tile(query, keys, rest, factors, CAPPED, REST)
        if MASKED:
            seen = tokens[None, :] <= positions[:, None]
            if WINDOWED:
                seen = seen & (tokens[None, :] > positions[:, None] - window)
            scores = tl.where(seen, scores, float("-inf"))
        mixed, top, total = absorb_tile(mixed, top, total, scores, values)
    return mixed, top, total


@triton.jit
def _attend(
    query, paged, positions, last, window, regions, stretch, factors, ROWS: tl.constexpr,
    CAPPED: tl.constexpr, WINDOWED: tl.constexpr, TILE: tl.constexpr, LAYOUT: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    """The state behind what rows at `positions`, up to `last`, see of a stretch: of the
    window's edge, of what all of them see, of the diagonal.
    """
    begin, end = stretch
    edge, diagonal = regions
    above, below = edge, diagonal
    if SPLIT:  # a stretch may begin and end in any of them; not SPLIT, it is all of them
        above, below = tl.maximum(edge, begin), tl.minimum(diagonal, end)
        diagonal = tl.maximum(diagonal, begin)
    _, _, PADDED, _, _, _ = LAYOUT
    state = nothing_seen(ROWS, PADDED)
    if WINDOWED:
        state = _pass_keys(
            state, begin, tl.minimum(edge, end), query, paged, positions, last, window,
            factors, CAPPED, True, TILE, LAYOUT, True,
        )  # fmt: skip
    state = _pass_keys(
        state, above, below, query, paged, positions, last, window,
        factors, CAPPED, WINDOWED, TILE, LAYOUT, False,
    )  # fmt: skip
    return _pass_keys(
        state, diagonal, end, query, paged, positions, last, window,
        factors, CAPPED, WINDOWED, TILE, LAYOUT, True,
    )  # fmt: skip


@triton.jit(
    do_not_specialize=["sequences", "num_rows", "shortest", "window", "table_stride"],
    do_not_specialize_on_alignment=["tables", "firsts", "lengths", "sinks", "kv_heads"],
)
def _prefill(
    queries,
    memory,
    tables,
    firsts,
    lengths,
    sinks,
    output,
    counts,
    mixed_parts,
    sums,
    sequences,
    num_rows,
    shortest,
    layer_offset,
    window,
    scale,
    cap,
    query_stride,
    head_stride,
    table_stride,
    block_stride,
    kv_head_stride,
    token_stride,
    value_offset,
    kv_heads,
    BLOCK: tl.constexpr,
    SHARING: tl.constexpr,
    PACKED: tl.constexpr,
    GROUPS: tl.constexpr,
    VALUE: tl.constexpr,
    PADDED: tl.constexpr,
    WIDTH: tl.constexpr,
    REST: tl.constexpr,
    SHARED: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """A program: a tile of tokens, a group of the query heads of a KV head, and stretch `y` of
    what is seen.

    The programs of one tile are neighbours: what one reads, those of its group find in L2.
    """
    SPAN: tl.constexpr = ROWS // PACKED
    LAYOUT: tl.constexpr = (BLOCK, VALUE, PADDED, WIDTH, REST, SHARED)
    num_heads = kv_heads * SHARING
    group = tl.program_id(0) % GROUPS
    kv_head = tl.program_id(0) // GROUPS % kv_heads
    split, splits = tl.program_id(1), tl.num_programs(1)
    tile = (tl.num_programs(0) - 1 - tl.program_id(0)) // (GROUPS * kv_heads)
    sequence, begin, count, index = place_of(firsts, sequences, tile, SPAN)
    rows = tl.arange(0, ROWS)
    shared = group * PACKED + rows % PACKED
    real = (rows < SPAN * PACKED) & (shared < SHARING)
    head = kv_head * SHARING + shared
    if index >= count:
        if (sequence == sequences - 1) & (split == 0):  # the rows behind it are padding
            spare = begin + count + index - tl.cdiv(count, SPAN) * SPAN
            _pad(
                output, counts, spare, num_rows, head, real, ROWS, PACKED, num_heads, LAYOUT,
                SPLIT,
            )  # fmt: skip
        return

    before = tl.load(lengths + sequence) - count
    last = before + tl.minimum(index + SPAN, count) - 1
    low, edge, diagonal = _regions(before + index, last, window, WINDOWED, TILE)
    start, end, stretches = low, last + 1, 1
    if SPLIT:
        stretch = stretch_of(end - low, splits, shortest, TILE)
        stretches = tl.cdiv(end - low, stretch)
        if split >= stretches:
            return
        start += split * stretch
        end = tl.minimum(start + stretch, end)

    token = index + rows // PACKED
    live = real & (token < count)
    row = (begin + token).to(tl.int64)
    at = row * query_stride + head.to(tl.int64) * head_stride
    query = load_query(queries, at, live, LAYOUT)
    positions = tl.minimum(before + token, last)
    memory += layer_offset + kv_head.to(tl.int64) * kv_head_stride
    table = tables + sequence.to(tl.int64) * table_stride
    paged = (memory, table, block_stride, token_stride, value_offset)
    state = _attend(
        query, paged, positions, last, window, (edge, diagonal), (start, end), (scale, cap),
        ROWS, CAPPED, WINDOWED, TILE, LAYOUT, SPLIT,
    )  # fmt: skip
    row = row * num_heads + head
    if SPLIT:  # a way out of their own for those that have it all would cost loops registers
        room, all_rows = (counts, mixed_parts, sums), num_rows.to(tl.int64) * num_heads
        store_part(state, row, splits, split, stretches, live, room, all_rows, VALUE)
    else:
        mixed, total = add_sinks(sinks, head, live, state, SINKS)
        result = divide(mixed, total).to(output.dtype.element_ty)
        store_rows(output, row, live, result, VALUE)
