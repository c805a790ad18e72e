"""What surrounds attention in a layer, and attention itself: turns and writes, decode, prefill.

Torch's own attention reads keys and values that lie dense and in order; ours has them in blocks
that lie anywhere.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor

from bench.gpu.row import Prepared, Row, Run
from bench.gpu.shapes import Shape
from engine.kernels.gpu.attention_floors import decode_floor, prefill_floor, turn_floor
from engine.kernels.gpu.attention_plans import plan_tiles
from engine.kernels.gpu.decode_attention import decode_attention
from engine.kernels.gpu.paged_call import Heads
from engine.kernels.gpu.prefill_attention import prefill_attention
from engine.kernels.gpu.turn_and_write import turn_and_write
from engine.kernels.gpu.turn_twin import turn_and_write_twin
from engine.kernels.rows import E4M3
from engine.kernels.style import AttentionStyle

Seen = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
LAYERS, LAYER = 4, 1  # so that blocks lie apart as they do in a model
DRAFTED = 5  # tokens of a sequence: four drafts, and the one before them


def rows(shape: Shape) -> Iterator[Row]:
    """Decode steps of like and of unlike contexts, a prompt, its end behind the rest, and short
    chunks behind a long context. Some of them over KV in fp8, too.
    """
    if shape.quantization is not None:
        return
    context, prompt = shape.context, shape.prefill
    for batch in shape.batches:
        setting = f"batch {batch}, context {context}"
        yield Row("decode attention", setting, partial(_decode, shape, [context] * batch))
        eight = partial(_decode, shape, [context] * batch, stored=E4M3)
        yield Row("decode attention", f"{setting}, KV in fp8", eight)
        if batch > 1:
            uneven = [2 * context * (row + 1) // batch for row in range(batch)]
            setting = f"batch {batch}, context up to {2 * context}"
            yield Row("decode attention", setting, partial(_decode, shape, uneven))
    for count in (prompt, prompt // 4):
        setting = f"{count} tokens behind {prompt - count}"
        yield Row("prefill attention", setting, partial(_prefill, shape, count, prompt))
        setting = f"{setting}, KV in fp8"
        eight = partial(_prefill, shape, count, prompt, stored=E4M3)
        yield Row("prefill attention", setting, eight)
    for count in (128, DRAFTED):  # the next turn of a chat, and drafts that are verified
        count, cached = min(count, prompt // 4), shape.cached
        setting = f"{count} tokens behind {cached}"
        yield Row("prefill attention", setting, partial(_prefill, shape, count, count + cached))
        whole = partial(_prefill, shape, count, count + cached, split=False)
        yield Row("prefill attention", f"{setting}, not split", whole)
    for tokens in (*shape.batches, prompt):
        yield Row("turns and writes", f"{tokens} tokens", partial(_turn, shape, tokens))
        eight = partial(_turn, shape, tokens, stored=E4M3)
        yield Row("turns and writes", f"{tokens} tokens, KV in fp8", eight)


class _Paged(NamedTuple):
    memory: Tensor
    tables: Tensor
    lengths: Tensor
    keys: Tensor  # dense, [sequences, kv_heads, longest, head_dim], in the shape's type
    values: Tensor


def _paged(
    shape: Shape, lengths: Sequence[int], device: torch.device, stored: torch.dtype | None
) -> _Paged:
    size = shape.block_size
    most = -(-max(lengths) // size)
    memory = _memory(shape, len(lengths) * most, device, stored)
    tables = torch.randperm(len(memory), device=device).view(len(lengths), most)
    found = memory[:, LAYER].to(shape.dtype)[tables]
    dense = found.permute(2, 0, 3, 1, 4, 5).flatten(3, 4)
    told = torch.tensor(lengths, dtype=torch.int32, device=device)
    keys, values = (part.contiguous() for part in dense[:, :, :, : max(lengths)])
    return _Paged(memory, tables.int(), told, keys, values)


def _memory(
    shape: Shape, blocks: int, device: torch.device, stored: torch.dtype | None
) -> Tensor:
    sizes = blocks, LAYERS, 2, shape.num_key_value_heads, shape.block_size, shape.head_dim
    return torch.randn(sizes, dtype=shape.dtype, device=device).to(stored or shape.dtype)


def _heads(shape: Shape, stored: torch.dtype | None) -> Heads:
    width, itemsize = shape.head_dim, shape.dtype.itemsize
    sizes = shape.num_attention_heads, shape.num_key_value_heads, width, width, 2
    return Heads(*sizes, itemsize, (stored or shape.dtype).itemsize)


def _queries(shape: Shape, tokens: int, device: torch.device) -> Tensor:
    sizes = tokens, shape.num_attention_heads, shape.head_dim
    return torch.randn(sizes, dtype=shape.dtype, device=device)


def _decode(
    shape: Shape,
    lengths: Sequence[int],
    device: torch.device,
    *,
    stored: torch.dtype | None = None,
) -> Prepared:
    paged = _paged(shape, lengths, device, stored)
    memory, tables, told, keys, values = paged
    queries, style = _queries(shape, len(lengths), device), _style(shape)
    seen = torch.arange(keys.shape[2], device=device) < told[:, None]
    mask = None if min(lengths) == max(lengths) else seen[:, None, None]
    dense = queries[:, :, None], keys, values
    sdpa = partial(_sdpa, dense, style, mask)
    rivals: dict[str, Callable[[], Run]] = {"sdpa, dense": lambda: sdpa}
    rivals["flex, dense"] = partial(
        _flex, dense, style, None if mask is None else _within(told)
    )
    run = partial(decode_attention, queries, memory, LAYER, tables, told, style)
    return Prepared(run, decode_floor(_heads(shape, stored), lengths), sdpa, rivals)


def _prefill(
    shape: Shape,
    count: int,
    length: int,
    device: torch.device,
    *,
    split: bool = True,
    stored: torch.dtype | None = None,
) -> Prepared:
    memory, tables, told, keys, values = _paged(shape, [length], device, stored)
    queries, style = _queries(shape, count, device), _style(shape)
    firsts = torch.tensor([0, count], dtype=torch.int32, device=device)
    dense = queries.transpose(0, 1)[None], keys, values
    mask = torch.ones(count, length, dtype=torch.bool, device=device).tril(length - count)
    whole = count == length
    sdpa = partial(_sdpa, dense, style, None if whole else mask, causal=whole)
    rivals: dict[str, Callable[[], Run]] = {"sdpa, dense": lambda: sdpa}
    rivals["flex, dense"] = partial(_flex, dense, style, _behind(length - count))
    plan = None if split else plan_tiles(_heads(shape, stored), count)
    given = queries, memory, LAYER, tables, firsts, told, count, style
    return Prepared(
        partial(prefill_attention, *given, plan=plan),
        prefill_floor(_heads(shape, stored), [(count, length)]),
        lambda: _sdpa(dense, style, mask).transpose(1, 2),
        rivals,
    )


def _turn(
    shape: Shape, tokens: int, device: torch.device, *, stored: torch.dtype | None = None
) -> Prepared:
    heads, kv_heads = shape.num_attention_heads, shape.num_key_value_heads
    memory = _memory(shape, -(-tokens // shape.block_size) + 1, device, stored)
    sizes = tokens, heads + 2 * kv_heads, shape.head_dim
    mixed = torch.randn(sizes, dtype=shape.dtype, device=device)
    rope = torch.randn(2 * tokens, 2, shape.head_dim, dtype=shape.dtype, device=device)
    queries, keys, values = mixed.split((heads, kv_heads, kv_heads), 1)
    positions = torch.randint(2 * tokens, (tokens,), device=device)
    slots = torch.randperm(len(memory) * shape.block_size, device=device)[:tokens]
    given = queries, keys, values, rope, positions, memory, LAYER, slots
    twin = partial(turn_and_write_twin, *given)
    floor = turn_floor(queries, keys, values, rope, memory.itemsize)
    return Prepared(partial(turn_and_write, *given), floor, twin, {"torch": lambda: twin})


def _style(shape: Shape) -> AttentionStyle:
    return AttentionStyle(shape.head_dim**-0.5)


def _sdpa(
    dense: tuple[Tensor, Tensor, Tensor],
    style: AttentionStyle,
    mask: Tensor | None,
    *,
    causal: bool = False,
) -> Tensor:
    return F.scaled_dot_product_attention(
        *dense, attn_mask=mask, is_causal=causal, scale=style.scale, enable_gqa=True
    )


def _within(lengths: Tensor) -> Seen:
    """Keys of a sequence that is as long as it is."""

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:  # noqa: ARG001
        return key < lengths[batch]

    return seen


def _behind(cached: int) -> Seen:
    """Keys up to its own, of a query behind so many."""

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:  # noqa: ARG001
        return query + cached >= key

    return seen


def _flex(
    dense: tuple[Tensor, Tensor, Tensor], style: AttentionStyle, seen: Seen | None
) -> Run:
    """Compiled for this shape, on a GPU; slow to make. None: all is seen."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    queries, keys, _ = dense
    mask = None
    if seen is not None:
        sizes = len(queries), None, queries.shape[2], keys.shape[2]
        mask = create_block_mask(seen, *sizes, device=str(keys.device))
    torch.compiler.reset()  # after eight shapes a function is compiled for no more
    run = flex_attention if keys.is_cpu else torch.compile(flex_attention, dynamic=False)
    return partial(run, *dense, block_mask=mask, scale=style.scale, enable_gqa=True)
