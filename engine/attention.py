"""Paged attention in plain torch: right on any device, and the twin of faster kernels.

A batch's tokens lie behind one another: first the sequences that want one token each, then
the chunks of prompts. The first kind is padded to its longest and attends in one call, each
prompt chunk in a call of its own.

What is masked is still multiplied, by zero, and that is not zero for what is no number. So
a sequence is padded with its own blocks, and a block is cleared before it is half used.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor

from engine.kv_memory import KvMemory


@dataclass(frozen=True, slots=True)
class Span:
    """Part of a sequence: attend from `length` tokens at `start`, to all up to their own.

    `blocks` hold the KV of the sequence up to the end of this part, at least.
    """

    start: int
    length: int
    blocks: Sequence[int]

    def entered(self, block_size: int) -> int | None:
        """The block that this part is the first to write to, but does not fill."""
        index, rest = divmod(self.start + self.length, block_size)
        return self.blocks[index] if 0 < rest <= self.length else None


@dataclass(slots=True)
class _Group:
    """Sequences whose queries attend in one call: `rows` and lengths of their KV."""

    rows: Tensor  # [sequences, kv_heads, blocks]
    starts: Tensor  # [sequences]
    length: int
    masks: dict[int | None, Tensor | None] = field(default_factory=dict)

    def mask(self, window: int | None, positions: int) -> Tensor | None:
        """[sequences, 1, length, positions], true where a query may look."""
        if window not in self.masks:
            self.masks[window] = self._mask(window, positions)
        return self.masks[window]

    def _mask(self, window: int | None, positions: int) -> Tensor:
        device = self.rows.device
        keys = torch.arange(positions, device=device)
        queries = self.starts[:, None] + torch.arange(self.length, device=device)
        seen = keys <= queries[..., None]  # [sequences, length, positions]
        if window is not None:
            seen &= keys > queries[..., None] - window
        return seen.unsqueeze(1)


class AttentionBatch:
    """What one forward pass needs to know of positions and blocks; built once per step."""

    def __init__(
        self, memory: KvMemory, singles: Sequence[Span], chunks: Sequence[Span]
    ) -> None:
        self.memory = memory
        spans, device = [*singles, *chunks], memory.block_rows.device
        self.positions = torch.cat(
            [torch.arange(span.start, span.start + span.length) for span in spans]
        ).to(device)
        self.slots = self._slots(spans)
        self.entered = [
            block for span in spans if (block := span.entered(memory.block_size)) is not None
        ]
        self._num_singles = len(singles)
        self._singles = self._group(singles) if singles else None
        self._chunks = [self._group([chunk]) for chunk in chunks]

    def attend(self, layer: int, window: int | None, queries: Tensor) -> Tensor:
        """[tokens, heads, head_dim] against the layer's KV; [tokens, heads * head_dim]."""
        tokens, heads, head_dim = queries.shape
        first, parts = self._num_singles, list[Tensor]()
        if self._singles is not None:
            parts.append(self._attend_singles(layer, window, queries[:first]))
        for group in self._chunks:
            ours = queries[first : first + group.length]
            parts.append(self._attend_chunk(layer, window, ours, group))
            first += group.length
        joined = parts[0] if len(parts) == 1 else torch.cat(parts)
        return joined.view(tokens, heads * head_dim)

    def _attend_singles(self, layer: int, window: int | None, queries: Tensor) -> Tensor:
        """The heads that share keys become the rows of one small matrix."""
        assert self._singles is not None
        keys, values = self.memory.read(layer, self._singles.rows)
        mask = self._singles.mask(window, keys.shape[2])
        count, heads, head_dim = queries.shape
        grouped = queries.reshape(count, self.memory.kv_heads, -1, head_dim)
        out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
        return out.reshape(count, heads, head_dim)

    def _attend_chunk(
        self, layer: int, window: int | None, queries: Tensor, group: _Group
    ) -> Tensor:
        keys, values = self.memory.read(layer, group.rows)
        mask = group.mask(window, keys.shape[2])
        across = queries.transpose(0, 1).unsqueeze(0)  # [1, heads, length, head_dim]
        out = F.scaled_dot_product_attention(
            across, keys, values, attn_mask=mask, enable_gqa=True
        )
        return out.squeeze(0).transpose(0, 1)

    def _group(self, spans: Sequence[Span]) -> _Group:
        size, device = self.memory.block_size, self.memory.block_rows.device
        counts = [-(-(span.start + span.length) // size) for span in spans]
        most = max(counts)
        table = [
            [*span.blocks[:count], *([span.blocks[0]] * (most - count))]
            for span, count in zip(spans, counts, strict=True)
        ]
        starts = torch.tensor([span.start for span in spans], device=device)
        rows = self.memory.head_rows(torch.tensor(table, device=device))
        return _Group(rows, starts, spans[0].length)

    def _slots(self, spans: Sequence[Span]) -> Tensor:
        """Where each token's KV goes: [tokens * kv_heads] rows of `token_rows`."""
        size, device = self.memory.block_size, self.memory.block_rows.device
        blocks = torch.tensor(
            [
                span.blocks[position // size]
                for span in spans
                for position in range(span.start, span.start + span.length)
            ],
            device=device,
        )
        rows = self.memory.head_rows(blocks.unsqueeze(-1)).squeeze(-1)  # [tokens, heads]
        return (rows * size + (self.positions % size).unsqueeze(-1)).reshape(-1)
