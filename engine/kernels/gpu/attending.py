"""Shared by decode and prefill attention: tiles of paged KV, scores, the online softmax.

A tile is TILE tokens of one sequence and one KV head. Its rows are gathered by the block
table, token by token, so a block may have any size and any stride; each row is contiguous, and
read in whole vectors. Widths that are no powers of two are padded in registers, not in memory:
the leading `VALUE` numbers of a row to the next power of two, and what a key has beyond them
(a latent's turned part) as a product of its own, so 576 is 512 + 64 and not 1024.

The softmax is the streaming one (Milakov and Gimelshein 2018; Dao 2023, "FlashAttention-2"), in
powers of two: scores carry log2(e), since exp2 is what the hardware has. A row that has seen
nothing yet has a maximum of -inf, from which nothing is ever subtracted.
"""

import math

import triton
import triton.knobs
import triton.language as tl

from engine.kernels.style import AttentionStyle

LOG2_E = math.log2(math.e)
IN_LOG2 = tl.constexpr(LOG2_E)
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def row_offsets(
    table, tokens, seen, block_stride, token_stride, BLOCK,
    SIGNED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Where the rows of `tokens` [TILE] begin, int64; unseen tokens' table is not read.

    No token is negative: not SIGNED, a row's place takes one instruction instead of four.
    """
    if MASKED:
        blocks = tl.load(table + tokens // BLOCK, mask=seen, other=0)
    else:
        blocks = tl.load(table + tokens // BLOCK)
    within = (tokens if SIGNED else tokens.to(tl.uint32)) % BLOCK
    return blocks.to(tl.int64) * block_stride + within.to(tl.int64) * token_stride


@triton.jit
def load_rows(
    memory, offsets, seen, WIDTH: tl.constexpr, PADDED: tl.constexpr, MASKED: tl.constexpr
):
    """[TILE, PADDED]: WIDTH numbers of each row; unseen rows are zero and are not read."""
    columns = tl.arange(0, PADDED)
    at = memory + offsets[:, None] + columns[None, :]
    if MASKED and WIDTH != PADDED:
        return tl.load(at, mask=seen[:, None] & (columns < WIDTH)[None, :], other=0.0)
    if MASKED:
        return tl.load(at, mask=seen[:, None], other=0.0)
    if WIDTH != PADDED:
        return tl.load(at, mask=(columns < WIDTH)[None, :], other=0.0)
    return tl.load(at)


@triton.jit
def load_query(queries, at, live, LAYOUT: tl.constexpr):
    """[ROWS, PADDED] and [ROWS, REST]: the two parts of rows that begin `at` those places.

    LAYOUT says how rows of keys and values lie: (BLOCK tokens, the leading VALUE numbers,
    PADDED, the whole WIDTH, the REST padded or 0, whether a key is SHARED as value).
    """
    _, VALUE, PADDED, WIDTH, REST, _ = LAYOUT
    leading = load_rows(queries, at, live, VALUE, PADDED, True)
    rest = leading
    if REST:
        rest = load_rows(queries + VALUE, at, live, WIDTH - VALUE, REST, True)
    return leading, rest


@triton.jit
def read_tile(query, paged, tokens, there, LAYOUT: tl.constexpr, MASKED: tl.constexpr):
    """Keys [TILE, PADDED], what they have beyond that [TILE, REST], and values [TILE, PADDED].

    All in the type of the `query`: what is stored as fp8 is converted, which is exact. `paged`
    is memory at the KV head, a sequence's table, the strides of a block and of a token, and how
    far values are from keys. Not MASKED: all `tokens` are there.
    """
    memory, table, block_stride, token_stride, value_offset = paged
    BLOCK, VALUE, PADDED, WIDTH, REST, SHARED = LAYOUT
    offsets = row_offsets(  # latents have no register left for what counting unsigned keeps
        table, tokens, there, block_stride, token_stride, BLOCK, SHARED, MASKED
    )
    keys = load_rows(memory, offsets, there, VALUE, PADDED, MASKED)
    keys_rest = keys
    if REST:
        keys_rest = load_rows(memory + VALUE, offsets, there, WIDTH - VALUE, REST, MASKED)
    values = keys
    if not SHARED:
        values = load_rows(memory + value_offset, offsets, there, VALUE, PADDED, MASKED)
    computed = query[0].dtype
    return keys.to(computed), keys_rest.to(computed), values.to(computed)


@triton.jit
def product(rows, columns, added):
    """rows [m, k] @ columns [k, n] + added, in float32; not in the 19 bits of tf32.

    Triton's interpreter multiplies bfloat16 as whole numbers, so it gets float32.
    """
    if INTERPRETED:
        rows, columns = rows.to(tl.float32), columns.to(tl.float32)
    return tl.dot(rows, columns, added, input_precision="ieee")


@triton.jit
def score_tile(query, keys, keys_rest, factors, CAPPED, REST: tl.constexpr):
    """[ROWS, TILE] float32 scores, times log2(e), by the `factors` of `score_factors`.

    Capped, they are cap * tanh(x) for scale * product = 2 x log2(e): beyond 2^64 it is 1.
    """
    leading, rest = query
    scale, cap = factors
    nothing = tl.zeros((leading.shape[0], keys.shape[0]), tl.float32)
    products = product(leading, tl.trans(keys), nothing)
    if REST:
        products = product(rest, tl.trans(keys_rest), products)
    scores = products * scale
    if CAPPED:
        scores = cap - 2 * cap / (1 + tl.exp2(tl.minimum(scores, 64.0)))
    return scores


def score_factors(style: AttentionStyle) -> tuple[float, float]:
    """`scale` and `cap` of `score_tile`, with log2(e) folded in."""
    if style.softcap is None:
        return style.scale * LOG2_E, 0.0
    return 2 * LOG2_E * style.scale / style.softcap, style.softcap * LOG2_E


@triton.jit
def nothing_seen(ROWS: tl.constexpr, PADDED: tl.constexpr):
    """The state before the first tile: values mixed so far, the highest score, the sum."""
    mixed = tl.zeros((ROWS, PADDED), tl.float32)
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    return mixed, top, tl.zeros((ROWS,), tl.float32)


@triton.jit
def absorb_tile(mixed, top, total, scores, values):
    """The state after one more tile.

    `mixed` [ROWS, VALUE] and `total` [ROWS] are in units of 2^top. -inf scores count nothing.
    """
    higher = tl.maximum(top, tl.max(scores, 1))
    shift = tl.where(higher == float("-inf"), 0.0, higher)
    weights = tl.exp2(scores - shift[:, None])
    fade = tl.exp2(top - shift)
    total = total * fade + tl.sum(weights, 1)
    mixed = mixed * fade[:, None]
    mixed = product(weights.to(values.dtype), values, mixed)
    return mixed, higher, total


@triton.jit
def add_sinks(sinks, heads, live, state, SINKS: tl.constexpr):
    """One more score of each row, which weighs no value."""
    mixed, top, total = state
    if SINKS:
        sink = tl.load(sinks + heads, mask=live, other=0.0).to(tl.float32)
        sink = sink * IN_LOG2
        higher = tl.maximum(top, sink)
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        fade = tl.exp2(top - shift)
        total = total * fade + tl.exp2(sink - shift)
        mixed = mixed * fade[:, None]
    return mixed, total


@triton.jit
def divide(mixed, total):
    """[ROWS, VALUE] / [ROWS]; zeros for a row that has looked at nothing."""
    return mixed / tl.where(total == 0, 1.0, total)[:, None]


@triton.jit
def store_rows(output, row, live, made, VALUE: tl.constexpr):
    """Of [ROWS, PADDED] the leading VALUE numbers, to rows of as many behind one another."""
    columns = tl.arange(0, made.shape[1])
    at = output + row[:, None] * VALUE + columns[None, :]
    tl.store(at, made, mask=live[:, None] & (columns < VALUE)[None, :])
