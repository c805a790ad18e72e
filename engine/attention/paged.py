"""Paged attention, by the CPU kernel if there is one, else in plain torch.

Plain torch works on any device, and is the reference that the kernel is compared with.
A batch's tokens are concatenated: first the sequences with one token each, then the chunks of
prompts. Sequences of one token and similar length are padded to the longest and attend in one
call. A chunk attends in slices, so that its scores stay small and no query is multiplied with
many keys that come after it.

Masked values are still multiplied by zero, and zero times NaN is NaN. So a sequence is padded
with its own blocks, and a block is cleared before it is partly filled.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch
from torch import Tensor

from engine.attention.kv_memory import KvPlanes
from engine.kernels.cpu.attention import Numbers, PagedAttention
from engine.kernels.style import AttentionStyle

QUERIES_AT_ONCE = 64
SHORT = 512


@dataclass(frozen=True, slots=True)
class Span:
    """Part of a sequence: `length` tokens from `start`, which attend to all up to themselves.

    `blocks` hold the KV of the sequence up to the end of this part, at least, and those of
    `state` what it keeps beside KV. `adapter` is the number of its LoRA adapter.
    """

    start: int
    length: int
    blocks: Sequence[int]
    adapter: int | None = None
    state: Sequence[int] = ()

    def entered(self, block_size: int) -> Sequence[int]:
        """The block, if any, that this part is the first to write to but does not fill."""
        index, rest = divmod(self.start + self.length, block_size)
        return self.blocks[index : index + 1] if 0 < rest <= self.length else ()


@dataclass(slots=True)
class _Slice:
    """Consecutive queries of each sequence of a group, and the `seen` first keys they need."""

    positions: Tensor  # [sequences, length]
    first: int
    seen: int
    masks: dict[int | None, Tensor] = field(default_factory=dict)

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, style: AttentionStyle
    ) -> Tensor:
        """[sequences, length, kv_heads, sharing, dim] to [sequences * length, heads * values].

        The heads that share keys, at all positions, are the rows of one product.
        """
        sequences, length, kv_heads, sharing, dim = queries.shape
        batch, rows = sequences * kv_heads, sharing * length
        across = queries.permute(0, 2, 3, 1, 4).reshape(batch, rows, dim)
        keys, values = (one.flatten(0, 1) for one in (keys, values))  # [batch, seen, ..]
        mask = self._mask(style.window, across, kv_heads, sharing)
        scores = _scores(across, keys.transpose(1, 2), mask, style)
        if style.sinks is None:
            weights = scores.softmax(-1)
        else:
            ours = style.sinks.to(scores.dtype).view(1, kv_heads, sharing, 1, 1)
            ours = ours.expand(sequences, -1, -1, length, -1).reshape(batch, rows, 1)
            weights = torch.cat((scores, ours), -1).softmax(-1)[..., :-1]
        mixed = torch.bmm(weights, values)
        mixed = mixed.view(sequences, kv_heads, sharing, length, -1)
        return mixed.permute(0, 3, 1, 2, 4).reshape(sequences * length, -1)

    def _mask(self, window: int | None, like: Tensor, kv_heads: int, sharing: int) -> Tensor:
        """0 where a query may attend, else -inf; it broadcasts to the scores.

        [sequences * kv_heads, 1, seen] for single queries, [1, sharing * length, seen] for a
        slice of one sequence: the smallest shape that broadcasts.
        """
        if window not in self.masks:
            keys = torch.arange(self.seen, device=self.positions.device)
            hidden = keys > self.positions[..., None]
            if window is not None:
                hidden |= keys <= self.positions[..., None] - window
            mask = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device)
            mask.masked_fill_(hidden, -torch.inf)
            singles = self.positions.shape[1] == 1
            self.masks[window] = (
                mask.repeat_interleave(kv_heads, 0) if singles else mask.repeat(1, sharing, 1)
            )
        return self.masks[window]


@dataclass(frozen=True, slots=True)
class _Group:
    """Sequences of `length` tokens each, whose KV is read together."""

    rows: Tensor  # [parts, sequences, kv_heads, blocks]
    length: int
    slices: Sequence[_Slice]


class SpanAttention:
    """Attention of the queries of some spans, `singles` of one token first, in layers of one
    kind.
    """

    def __init__(
        self, planes: KvPlanes, singles: Sequence[Span], chunks: Sequence[Span]
    ) -> None:
        self._planes = planes
        self._compiled, self._groups = self._compile([*singles, *chunks]), list[_Group]()
        if self._compiled is None:
            alike = [list(some) for _, some in groupby(singles, key=_size_class)]
            self._groups = [self._group(some) for some in [*alike, *([one] for one in chunks)]]

    def renew(self, singles: Sequence[Span]) -> None:
        """Attend for as many other single tokens from now on, without chunks; kernel only."""
        assert self._compiled is not None, "the kernel's"
        self._compiled.renew(*told(singles, [one.blocks for one in singles]))

    def attend(self, layer: int, style: AttentionStyle, queries: Tensor) -> Tensor:
        """See Batch in engine/attention/batch.py; layers are counted within their kind."""
        if self._compiled is not None:
            return self._compiled.attend(layer, style, queries)
        kv_heads, width = self._planes.kind.heads, self._planes.kind.width
        first, parts = 0, list[Tensor]()
        for group in self._groups:
            found = self._planes.read(layer, group.rows)
            keys, values = (one.to(queries.dtype) for one in found)
            count = keys.shape[0] * group.length
            ours = queries[first : first + count]
            ours = ours.view(-1, group.length, kv_heads, queries.shape[1] // kv_heads, width)
            for one in group.slices:
                some = ours[:, one.first : one.first + one.positions.shape[1]]
                known = keys[:, :, : one.seen], values[:, :, : one.seen]
                parts.append(one.attend(some, *known, style))
            first += count
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _compile(self, spans: Sequence[Span]) -> PagedAttention | None:
        kernels, planes = self._planes.kernels, self._planes
        if kernels is None:
            return None
        ours = told(spans, [span.blocks for span in spans])
        return kernels.attention(planes.blocks, planes.value_width, *ours)

    def _group(self, spans: Sequence[Span]) -> _Group:
        """A group padded to its longest sequence; a chunk may be cut into several slices."""
        size, length = self._planes.block_size, spans[0].length
        counts = [-(-(span.start + length) // size) for span in spans]
        table = [
            [*span.blocks[:count], *[span.blocks[0]] * (max(counts) - count)]
            for span, count in zip(spans, counts, strict=True)
        ]
        last = max(span.start for span in spans)
        positions = self._ids([span.start for span in spans])[:, None]
        positions = positions + torch.arange(length, device=positions.device)
        slices = list[_Slice]()
        for first in range(0, length, QUERIES_AT_ONCE):
            some = positions[:, first : first + QUERIES_AT_ONCE]
            seen = -(-(last + first + some.shape[1]) // size) * size  # whole blocks: not copied
            slices.append(_Slice(some, first, seen))
        return _Group(self._planes.rows(self._ids(table)), length, slices)

    def _ids(self, numbers: Sequence[object]) -> Tensor:
        return torch.tensor(numbers, device=self._planes.block_rows.device)


def told(spans: Sequence[Span], blocks: Sequence[Sequence[int]]) -> tuple[Numbers, Numbers]:
    """Spans with the `blocks` of each, as kernels take them: descriptions, and tables."""
    described, table, row = array("q"), array("q"), 0
    for span, ours in zip(spans, blocks, strict=True):
        described.extend((span.start, span.length, row, len(table)))
        table.extend(ours)
        row += span.length
    return described, table


def _scores(queries: Tensor, keys: Tensor, mask: Tensor, style: AttentionStyle) -> Tensor:
    """[batch, rows, dim] and [batch, dim, seen] to [batch, rows, seen]; -inf where masked."""
    if style.softcap is None:
        return torch.baddbmm(mask, queries, keys, alpha=style.scale)
    capped = torch.bmm(queries, keys).mul_(style.scale / style.softcap).tanh_()
    return torch.add(mask, capped, alpha=style.softcap)


def _size_class(single: Span) -> int:
    """Group key: up to SHORT tokens, up to twice that, and so on; padding is at most half."""
    return (single.start // SHORT).bit_length()
