"""Divides a batch over latents: which chunks attend to keys and values that are made for them.

A query can attend to the stored latents themselves (engine/models/latent_attention.py). That
reads little, as decode needs, but it multiplies much: of DeepSeek-V3, 576 numbers for a score
and 512 for a value, where a head's own keys have 192 and its values 128. Making those costs
once for each token of the context. So a chunk of many tokens has the keys and values of its
context made, and attends to these (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1.2, and appendix
C for what is absorbed). They are gone after the layer; only latents are stored.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from engine.attention.kv_memory import KvMemory, KvShape
from engine.attention.paged import Span, SpanAttention
from engine.kernels.style import AttentionStyle

MATRIX_COST = 2
WORKSPACE_BYTES = 256 << 20  # of keys and values at a time; those of one head may take more


@dataclass(frozen=True, slots=True)
class LatentSizes:
    """Numbers of a latent and of the rotated key behind it; of a head's key without that, and
    of a head's value.
    """

    rank: int
    rope: int
    plain: int
    value: int

    @property
    def key(self) -> int:
        """Numbers of a head's whole key."""
        return self.plain + self.rope

    def heads_at_once(self, heads: int, tokens: int, itemsize: int) -> int:
        """How many of `heads` have room for keys and values in the workspace; at least 1."""
        return min(heads, max(1, WORKSPACE_BYTES // (2 * self.key * tokens * itemsize)))

    def workspace_bytes(self, heads: int, tokens: int, itemsize: int) -> int:
        """The most memory that a chunk takes, at the end of any context of up to `tokens`:
        latents, and keys and values of some heads.
        """
        one = 2 * self.key * tokens * itemsize
        made = min(heads * one, max(WORKSPACE_BYTES, one))
        return (self.rank + self.rope) * tokens * itemsize + made

    def cheaper_expanded(self, span: Span) -> bool:
        """Whether making keys and values is less work.

        Products with a head's matrices count MATRIX_COST times, as what they make goes through
        memory.
        """
        if self.value > self.key:
            return False  # values are stored as rows of a key's width
        expanded = self.operations(span, expanded=True, matrix_cost=MATRIX_COST)
        return expanded < self.operations(span, expanded=False, matrix_cost=MATRIX_COST)

    def operations(self, span: Span, *, expanded: bool, matrix_cost: int = 1) -> int:
        """Multiplications and additions of a head, for a chunk.

        A head's matrices are multiplied with each token of the context if it is `expanded`,
        else with each query and each result.
        """
        tokens = span.start + span.length if expanded else span.length
        each = self.key + self.value if expanded else 2 * self.rank + self.rope
        pairs = span.length * span.start + span.length * (span.length + 1) // 2
        matrices = self.rank * (self.plain + self.value)
        return 2 * (matrix_cost * tokens * matrices + pairs * each)


class AbsorbedRows(Protocol):
    """Rows whose queries attend to latents."""

    def attend(self, layer: int, style: AttentionStyle, queries: Tensor, /) -> Tensor:
        """[rows, heads, rank + rope] to [rows, heads * rank]."""


class ExpandedChunk(Protocol):
    """A chunk whose queries attend to keys and values of their own heads."""

    def latents(self, layer: int) -> Tensor:
        """[tokens, rank + rope] what is stored of its context, in the type that it is stored
        in; arbitrary numbers may follow.
        """

    def attend(
        self, style: AttentionStyle, queries: Tensor, made: Tensor, value_width: int
    ) -> Tensor:
        """[rows, heads, key] to [rows, heads * value_width].

        `made` [2, heads, tokens, key] are keys, and values in the leading numbers of rows.
        """


class LatentPart(NamedTuple):
    """Consecutive rows of a batch, which attend in one of two ways; the other one is None."""

    rows: slice
    absorbed: AbsorbedRows | None = None
    expanded: ExpandedChunk | None = None


class Run(NamedTuple):
    """Consecutive rows: singles and chunks that attend to latents, or one expanded chunk."""

    rows: slice
    singles: int
    chunks: range
    expanded: bool


def divide(
    singles: int, chunks: Sequence[Span], sizes: LatentSizes, least: int
) -> Sequence[Run]:
    """The runs of a batch in the order of its rows; none if no chunk is expanded.

    Chunks of fewer than `least` tokens are not.
    """
    wanted = [one.length >= least and sizes.cheaper_expanded(one) for one in chunks]
    return list(_runs(singles, chunks, wanted)) if any(wanted) else ()


def _runs(singles: int, chunks: Sequence[Span], wanted: Sequence[bool]) -> Iterator[Run]:
    row = first = 0
    if singles and wanted[0]:
        yield Run(slice(0, singles), singles, range(0), expanded=False)
        row, singles = singles, 0
    for expanded, some in groupby(wanted):
        count = len(list(some))
        each = 1 if expanded else count
        for at in range(first, first + count, each):
            end = row + singles + sum(span.length for span in chunks[at : at + each])
            yield Run(slice(row, end), singles, range(at, at + each), expanded)
            row, singles = end, 0
        first += count


class HostChunk:
    """See ExpandedChunk; in main memory, or on any device that torch alone runs on."""

    def __init__(self, memory: KvMemory, span: Span) -> None:
        self._memory, self._span = memory, span
        count = -(-(span.start + span.length) // memory.block_size)
        blocks = torch.tensor([[*span.blocks[:count]]], device=memory.block_rows.device)
        self._rows = memory.planes[0].rows(blocks)

    def latents(self, layer: int) -> Tensor:
        """See ExpandedChunk."""
        return self._memory.planes[0].read(layer, self._rows)[0][0, 0]

    def attend(
        self, style: AttentionStyle, queries: Tensor, made: Tensor, value_width: int
    ) -> Tensor:
        """See ExpandedChunk."""
        memory = _OneBlock(made, value_width, self._memory)
        span = Span(self._span.start, self._span.length, (0,))
        return SpanAttention(memory.planes[0], (), [span]).attend(0, style, queries)


class _OneBlock(KvMemory):
    """Keys and values that were `made` as the only block of a memory, for the same kernels."""

    def __init__(self, made: Tensor, value_width: int, like: KvMemory) -> None:
        _, heads, tokens, width = made.shape
        self._made = made
        shape = KvShape(1, heads, width, value_width=value_width)
        super().__init__(shape, 1, tokens, made.dtype, made.device, like.kernels)

    def _zeros(self, size: tuple[int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
        return self._made.view(size)
