"""Rotary embedding of queries and keys, and the write of keys and values, in one launch.

Each number is read once and written once: queries to where attention reads them, keys and
values straight to KV memory. A head's norm, if it has one, is fused. All is computed in float32
and rounded once, to fp8 too, where KV memory is of that (as the largest number beyond it).

A program takes one token and some of its heads: of queries, or of keys with their values. Heads
are rotated as in engine/attention/rotation.py: each number times its cosine, plus the number
half a head away times its sine, which has the sign. A table narrower than a head rotates the
head's last numbers (a latent's shared key, behind the latent); the leading ones are unchanged.
The number half a head away is loaded again, from L1.

Twin: engine/kernels/gpu/turn_twin.py. Floor: `turn_floor` in attention_floors.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.gpu.overlapping import launch_dependents, pdl_options, wait_for_previous
from engine.kernels.gpu.paged_call import power_of_two
from engine.kernels.gpu.rounding import rounded
from engine.kernels.rows import E4M3

NUMBERS = 2048  # per program: 16 for each of 128 threads
HEADS, LATENTS = 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class HeadNorms:
    """RMS norms over each head, before the rotation; weights [width].

    Without one for queries, keys are latents, whose rotated part is not normed.
    """

    query: Tensor | None
    key: Tensor
    eps: float

    @property
    def kind(self) -> int:
        """The kernel's constant: norms of whole heads, or of latents."""
        return LATENTS if self.query is None else HEADS


def turn_and_write(
    queries: Tensor,
    keys: Tensor,
    values: Tensor | None,
    rope: Tensor | None,
    positions: Tensor,
    memory: Tensor,
    layer: int,
    slots: Tensor,
    norms: HeadNorms | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Rotated queries [T, heads, width]; writes each token's keys and values to its slot.

    `queries` [T, heads, width], `keys` and `values` [T, kv_heads, width] may be views of one
    product. `rope` [positions, 2, rotated width]; None: no rotation. `positions` [T] integers;
    `slots` [T] int64, block * block_size + offset; at -1 (padding) nothing is written. `memory`
    [block, layer, part, kv_head, token, width]; if it has one part, `values` is None. Queries
    may have another width than keys. No two tokens may have the same slot. The result is
    written to `out`, if given: of any strides, but not `queries` themselves. Raises ValueError
    for shapes that do not match.
    """
    _check(queries, keys, values, rope, memory, norms)
    turned = queries.new_empty(queries.shape) if out is None else out
    if turned.shape != queries.shape or turned.stride(2) != 1:
        raise ValueError(f"out {list(turned.shape)} is not {list(queries.shape)}, head by head")
    rows = _Rows(queries, keys, values, turned)
    _launch(rows, (rope, positions), memory, layer, slots, norms)
    return turned


def turn(
    queries: Tensor, rope: Tensor | None, positions: Tensor, norm: Tensor | None, eps: float
) -> Tensor:
    """Rotated queries alone, [T, heads, width], which are normed first, if there is a `norm`
    [width]. Otherwise as `turn_and_write`, with heads whose keys are another layer's.
    """
    turned = queries.new_empty(queries.shape)
    rows, nowhere = _Rows(queries, queries[:, :0], None, turned), queries[None, None, None]
    norms = None if norm is None else HeadNorms(norm, norm, eps)
    _launch(rows, (rope, positions), nowhere, 0, positions, norms)
    return turned


def write(parts: Sequence[Tensor], memory: Tensor, layer: int, slots: Tensor) -> None:
    """Write keys and values, or latents, [T, kv_heads, width] each, unchanged to the slots."""
    keys, values = parts[0], parts[1] if len(parts) > 1 else None
    _check(keys, keys, values, None, memory, None)
    _launch(_Rows(None, keys, values, keys), (None, slots), memory, layer, slots, None)


class _Rows(NamedTuple):
    queries: Tensor | None
    keys: Tensor
    values: Tensor | None
    turned: Tensor


def _launch(
    rows: _Rows,
    rotation: tuple[Tensor | None, Tensor],
    memory: Tensor,
    layer: int,
    slots: Tensor,
    norms: HeadNorms | None,
) -> None:
    (queries, keys, values, turned), (rope, positions) = rows, rotation
    tokens, kv_heads, key_width = keys.shape
    if not tokens:
        return
    heads, width = turned.shape[1:]
    some = max(1, min(power_of_two(heads), NUMBERS // power_of_two(width)))
    some_kv = max(1, min(power_of_two(kv_heads), NUMBERS // power_of_two(key_width)))
    of_queries = 0 if queries is None else -(-heads // some)
    block, _, part, kv_head, token, _ = memory.stride()
    _turn_and_write[tokens, of_queries + -(-kv_heads // some_kv)](
        keys if queries is None else queries, keys, values, rope, positions, memory, slots,
        turned, norms and norms.query, norms and norms.key, norms.eps if norms else 0.0,
        layer * memory.stride(1), *_strides(queries), *_strides(keys), *_strides(values),
        *_strides(turned), *_strides(rope), block, part, kv_head, token, of_queries,
        BLOCK=memory.shape[4], HEADS=heads, KV_HEADS=kv_heads, WIDTH=width, KEY_WIDTH=key_width,
        TURNED=0 if rope is None else rope.shape[2],
        VALUES=values is not None, NORMED=norms.kind if norms else 0,
        SOME=some, SOME_KV=some_kv,
        PADDED=power_of_two(width), KEY_PADDED=power_of_two(key_width),
        FP8=memory.dtype is E4M3, num_warps=4, **pdl_options(),
    )  # fmt: skip


def _strides(rows: Tensor | None) -> tuple[int, int]:
    """From token to token and from head to head."""
    return (0, 0) if rows is None else (rows.stride(0), rows.stride(1))


def _check(
    queries: Tensor,
    keys: Tensor,
    values: Tensor | None,
    rope: Tensor | None,
    memory: Tensor,
    norms: HeadNorms | None,
) -> None:
    _, _, parts, kv_heads, _, width = memory.shape
    if keys.shape != (len(queries), kv_heads, width):
        raise ValueError(
            f"keys {list(keys.shape)} are not [{len(queries)}, {kv_heads}, {width}]"
        )
    if (values is None) != (parts == 1) or (values is not None and values.shape != keys.shape):
        told = None if values is None else list(values.shape)
        raise ValueError(f"values {told} do not go into {parts} parts of {list(keys.shape)}")
    narrowest = min(width, queries.shape[2])
    if rope is not None and (rope.shape[2] % 2 or rope.shape[2] > narrowest):
        raise ValueError(f"a table of {rope.shape[2]} does not turn heads of {narrowest}")
    if norms is not None:
        query = queries.shape[2] if norms.query is None else len(norms.query)
        turned = 0 if rope is None or norms.query is not None else rope.shape[2]
        if (query, len(norms.key)) != (queries.shape[2], width - turned):
            raise ValueError(f"norms of {query} and {len(norms.key)} are not a head's")
    rows = [queries, keys, memory, *([] if values is None else [values])]
    if any(row.stride(-1) != 1 for row in rows):
        raise ValueError("the numbers of a head must lie behind one another")


@triton.jit
def _turn(
    source, at, live, norm, eps, table, sine_stride,
    WIDTH: tl.constexpr, TURNED: tl.constexpr, NORMED: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """The rows at `source` + at, rotated: [rows, PADDED] float32.

    NORMED 1: all of it is normed before; 2: only the part that is not rotated.
    """
    leading: tl.constexpr = WIDTH - TURNED
    columns = tl.arange(0, PADDED)
    inside = columns < WIDTH
    keep = live[:, None] & inside[None, :]
    rows = tl.load(source + at[:, None] + columns[None, :], mask=keep, other=0.0)
    rows = rows.to(tl.float32)
    scale = tl.full((rows.shape[0], 1), 1.0, tl.float32)
    result = rows
    if NORMED == 1:
        scale = 1.0 / tl.sqrt(tl.sum(rows * rows, 1) / WIDTH + eps)[:, None]
        weight = tl.load(norm + columns, mask=inside, other=0.0).to(tl.float32)
        result = rows * scale * weight[None, :]
    if NORMED == 2:
        latent = columns < leading
        squares = tl.sum(tl.where(latent[None, :], rows * rows, 0.0), 1)
        factor = 1.0 / tl.sqrt(squares / leading + eps)[:, None]
        weight = tl.load(norm + columns, mask=latent, other=1.0).to(tl.float32)
        result = rows * tl.where(latent[None, :], factor, 1.0) * weight[None, :]
    if TURNED:
        turns = inside & (columns >= leading)
        away = leading + (columns - leading + TURNED // 2) % TURNED
        away = tl.where(turns, away, columns)  # any, but contiguous: eight are read at once
        some = live[:, None] & turns[None, :]
        others = tl.load(source + at[:, None] + away[None, :], mask=some, other=0.0)
        others = others.to(tl.float32)
        if NORMED == 1:
            weight = tl.load(norm + away, mask=turns, other=0.0).to(tl.float32)
            others = others * scale * weight[None, :]
        angle = table + columns - leading
        cos = tl.load(angle, mask=turns, other=1.0).to(tl.float32)
        sin = tl.load(angle + sine_stride, mask=turns, other=0.0).to(tl.float32)
        result = result * cos[None, :] + others * sin[None, :]
    return result


@triton.jit(
    do_not_specialize=["of_queries"],
    do_not_specialize_on_alignment=["positions", "slots"],
)
def _turn_and_write(
    queries, keys, values, rope, positions, memory, slots, turned,
    query_norm, key_norm, eps, layer_offset,
    query_stride, query_head_stride, key_stride, key_head_stride, value_stride,
    value_head_stride, turned_stride, turned_head_stride, position_stride, sine_stride,
    block_stride, part_stride, kv_head_stride, token_stride, of_queries,
    BLOCK: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr,
    KEY_WIDTH: tl.constexpr, TURNED: tl.constexpr, VALUES: tl.constexpr,
    NORMED: tl.constexpr, SOME: tl.constexpr, SOME_KV: tl.constexpr,
    PADDED: tl.constexpr, KEY_PADDED: tl.constexpr, FP8: tl.constexpr = False,
    OVERLAPPED: tl.constexpr = False,
):  # fmt: skip
    """A program: token `x`, and the heads of group `y`, those of queries first."""
    launch_dependents(OVERLAPPED)
    wait_for_previous(OVERLAPPED)
    token, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    table = rope
    if TURNED:
        table = rope + tl.load(positions + token).to(tl.int64) * position_stride
    if group < of_queries:
        head = group * SOME + tl.arange(0, SOME)
        at = token * query_stride + head.to(tl.int64) * query_head_stride
        result = _turn(
            queries, at, head < HEADS, query_norm, eps, table, sine_stride,
            WIDTH, TURNED, NORMED == 1, PADDED,
        )  # fmt: skip
        columns = tl.arange(0, PADDED)
        into = token * turned_stride + head.to(tl.int64) * turned_head_stride
        into = turned + into[:, None] + columns[None, :]
        keep = (head < HEADS)[:, None] & (columns < WIDTH)[None, :]
        tl.store(into, result.to(turned.dtype.element_ty), mask=keep)
    else:
        slot = tl.load(slots + token)
        kv_head = (group - of_queries) * SOME_KV + tl.arange(0, SOME_KV).to(tl.int64)
        live = (kv_head < KV_HEADS) & (slot >= 0)
        key_at = token * key_stride + kv_head * key_head_stride
        key = _turn(
            keys, key_at, live, key_norm, eps, table, sine_stride,
            KEY_WIDTH, TURNED, NORMED, KEY_PADDED,
        )  # fmt: skip
        key_columns = tl.arange(0, KEY_PADDED)
        place = slot // BLOCK * block_stride + slot % BLOCK * token_stride + layer_offset
        row = place + kv_head * kv_head_stride
        spot = memory + row[:, None] + key_columns[None, :]
        fits = live[:, None] & (key_columns < KEY_WIDTH)[None, :]
        tl.store(spot, rounded(key, memory, FP8), mask=fits)
        if VALUES:
            value_at = token * value_stride + kv_head * value_head_stride
            value = tl.load(
                values + value_at[:, None] + key_columns[None, :], mask=fits, other=0.0
            )
            tl.store(spot + part_stride, rounded(value, memory, FP8), mask=fits)
