"""Sequences in paged memory full of what is no number, and attention said slowly in float64."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.kernels.gpu.attention_plans import PrefillPlan
from engine.kernels.gpu.prefill_attention import prefill_attention
from engine.kernels.style import AttentionStyle

FLOATS = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
LAYERS, LAYER = 2, 1
PLAIN = AttentionStyle(0.3)
SINKS = torch.linspace(-4, 5, 6)


def styles_with(window: int) -> dict[str, AttentionStyle]:
    """All that a style can ask for, of six heads."""
    return {
        "window": AttentionStyle(0.3, window=window),
        "window of one": AttentionStyle(0.3, window=1),
        "window beyond all": AttentionStyle(0.3, window=1 << 33),
        "softcap": AttentionStyle(0.9, softcap=1.5),
        "sinks": AttentionStyle(0.3, sinks=SINKS),
        "all of it": AttentionStyle(0.9, window=window + 4, softcap=3.0, sinks=SINKS),
    }


@dataclass(frozen=True, slots=True)
class Shape:
    """Heads and widths of a case. `value_width` with one part is a latent's."""

    heads: int
    kv_heads: int
    width: int
    block_size: int
    parts: int = 2
    value_width: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """Sequences whose last `counts` tokens ask, in blocks that lie in no order."""

    queries: Tensor  # [sum of counts, heads, width]
    memory: Tensor
    tables: Tensor
    firsts: Tensor
    lengths: Tensor
    shape: Shape

    @property
    def value_width(self) -> int:
        return self.shape.value_width or self.shape.width


def on_its_device(style: AttentionStyle, case: Case) -> AttentionStyle:
    """With its sinks where the case's queries are."""
    if style.sinks is None:
        return style
    return replace(style, sinks=style.sinks.to(case.queries.device))


def attend_chunks(case: Case, style: AttentionStyle, plan: PrefillPlan | None) -> Tensor:
    """By prefill attention's kernel."""
    longest = int(case.firsts.diff().max())
    return prefill_attention(
        case.queries, case.memory, LAYER, case.tables, case.firsts, case.lengths, longest,
        on_its_device(style, case), case.shape.value_width, plan=plan,
    )  # fmt: skip


def make_case(
    shape: Shape,
    lengths: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    *,
    counts: Sequence[int] | None = None,
    window: int | None = None,
    spare: int = 2,
) -> Case:
    """Whatever no query may see is NaN: other layers, unused slots, tokens before the window.

    Tables point at no block where there is none to be seen.
    """
    counts = counts or [1] * len(lengths)
    size = shape.block_size
    most = max(1, *(math.ceil(length / size) for length in lengths)) + spare
    blocks = len(lengths) * most + 1
    order = iter(torch.randperm(blocks).tolist())
    memory = torch.full(
        (blocks, LAYERS, shape.parts, shape.kv_heads, size, shape.width), math.nan
    )
    tables = torch.full((len(lengths), most), 1 << 30, dtype=torch.int32)
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        low = 0 if window is None else max(0, length - count + 1 - window)
        for token in range(low, length):
            if tables[row, token // size] == 1 << 30:
                tables[row, token // size] = next(order)
            at = memory[tables[row, token // size], LAYER, :, :, token % size]
            at.copy_(torch.randn(at.shape))
    firsts = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    queries = torch.randn(sum(counts), shape.heads, shape.width)
    told = torch.tensor(lengths, dtype=torch.int32)
    return Case(
        queries.to(device, dtype),
        memory.to(device, dtype),
        tables.to(device),
        firsts.to(device),
        told.to(device),
        shape,
    )


def laid_otherwise(case: Case) -> Case:
    """The same with other strides: parts of products and of tables, token-major KV."""
    heads, width = case.queries.shape[1:]
    fused = torch.full((len(case.queries), heads + 5, width + 4), math.nan).to(case.queries)
    queries = fused[:, 2 : 2 + heads, :width].copy_(case.queries)
    token_major = case.memory.permute(4, 0, 3, 1, 2, 5).contiguous()
    rows, most = case.tables.shape
    wide = torch.full((rows, most + 7), 1 << 30).to(case.tables)
    tables = wide[:, 3 : 3 + most].copy_(case.tables)
    memory = token_major.permute(1, 3, 4, 2, 0, 5)
    return replace(case, queries=queries, memory=memory, tables=tables)


def expected(case: Case, style: AttentionStyle) -> Tensor:
    """[queries, heads * value_width] float64 on the CPU, one query at a time."""
    memory, queries = case.memory.cpu().double()[:, LAYER], case.queries.cpu().double()
    firsts, lengths = case.firsts.tolist(), case.lengths.tolist()
    result = torch.zeros(len(queries), case.shape.heads, case.value_width, dtype=torch.float64)
    for row, length in enumerate(lengths):
        first, count = firsts[row], firsts[row + 1] - firsts[row]
        lowest = min(length, _low(length - count + 1, style))
        seen = _rows(case, memory, row, lowest, length)
        for index in range(count):
            end = length - count + index + 1
            if (low := _low(end, style)) < end:
                some = seen[low - lowest : end - lowest]
                result[first + index] = _attended(queries[first + index], some, case, style)
    return result.flatten(1)


def _low(end: int, style: AttentionStyle) -> int:
    """The first token that the one before `end` sees."""
    return 0 if style.window is None else max(0, end - style.window)


def _rows(case: Case, memory: Tensor, row: int, low: int, end: int) -> Tensor:
    """[tokens, parts, kv_heads, width]."""
    tokens, size = torch.arange(low, end), case.shape.block_size
    blocks = case.tables[row].cpu().long()[tokens // size]
    return memory[blocks, :, :, tokens % size]


def _attended(query: Tensor, seen: Tensor, case: Case, style: AttentionStyle) -> Tensor:
    """[heads, width] against [tokens, parts, kv_heads, width]: [heads, value_width]."""
    grouped = query.unflatten(0, (case.shape.kv_heads, -1))
    products = torch.einsum("gsw,tgw->gst", grouped, seen[:, 0])
    weights = _weights(products.flatten(0, 1), style).view_as(products)
    values = seen[:, -1, :, : case.value_width]
    return torch.einsum("gst,tgw->gsw", weights, values).flatten(0, 1)


def _weights(products: Tensor, style: AttentionStyle) -> Tensor:
    """Of [heads, tokens]."""
    scores = products * style.scale
    if style.softcap is not None:
        scores = style.softcap * torch.tanh(scores / style.softcap)
    if style.sinks is not None:
        scores = torch.cat((scores, style.sinks.cpu().double()[:, None]), 1)
    return scores.softmax(1)[:, : products.shape[1]]


def distance(result: Tensor, right: Tensor) -> float:
    """|result - right| / |right|; infinite where something is no number."""
    result = result.cpu().double()
    if not result.isfinite().all():
        return math.inf
    return float((result - right).norm() / right.norm())
