"""A Batch in main memory, or on any device that torch alone runs on."""

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.attention.kv_memory import KvMemory
from engine.attention.latents import HostChunk, LatentPart, LatentSizes, Run, divide
from engine.attention.paged import Span, SpanAttention
from engine.attention.recurrence import SpanRecurrence
from engine.attention.rotation import Rotation
from engine.kernels.contract import HeadNorm, HeadNorms, Latents
from engine.kernels.recurrent import RecurrentInputs, RecurrentWeights
from engine.kernels.style import AttentionStyle

LEAST_EXPANDED = 32  # tokens: fewer gain nothing over latents


class AttentionBatch:
    """A Batch (engine/attention/batch.py) on any device; built anew for each step."""

    def __init__(
        self, memory: KvMemory, singles: Sequence[Span], chunks: Sequence[Span]
    ) -> None:
        self.memory = memory
        spans, size = [*singles, *chunks], memory.block_size
        self.positions, self.slots = self._places(spans)
        self.entered = [block for span in spans for block in span.entered(size)]
        self._attention = [SpanAttention(one, singles, chunks) for one in memory.planes]
        keeping = memory.kernels if memory.shape.state is not None else None
        self._recurrence = SpanRecurrence(keeping, singles, chunks)
        self._spans = singles, chunks
        self._latent_parts: Sequence[LatentPart] | None = None

    def renew(self, singles: Sequence[Span]) -> None:
        """Reuse this batch for as many other single tokens, without chunks; kernel only.

        All tensors of the batch keep their addresses.
        """
        positions, slots = self._places(singles)
        self.positions.copy_(positions)
        for ours, new in zip(self.slots, slots, strict=True):
            ours.copy_(new)
        self.entered = [one for span in singles for one in span.entered(self.memory.block_size)]
        for one in self._attention:
            one.renew(singles)
        self._recurrence.renew(singles)

    def turn_and_write(
        self,
        layer: int,
        parts: tuple[Tensor, Tensor, Tensor],
        rotation: Rotation | None,
        norms: HeadNorms | None = None,
    ) -> Tensor:
        """See Batch. The kernel rotates in place."""
        (queries, keys, values), (kind, own) = parts, self.memory.place_of(layer)
        planes = self.memory.planes[kind]
        if norms is not None:
            queries, keys = norms[0](queries), norms[1](keys)
        if planes.kernels is not None:
            angles = None if rotation is None else rotation.angles
            ours, slots = planes.token_rows_of(own), self.slots[kind]
            planes.kernels.turn_and_write((queries, keys, values), angles, ours, slots)
            return queries
        if rotation is not None:
            queries, keys = rotation.turn(queries), rotation.turn(keys)
        planes.write(own, self.slots[kind], keys, values)
        return queries

    def turn(
        self, layer: int, queries: Tensor, rotation: Rotation | None, norm: HeadNorm | None
    ) -> Tensor:
        """See Batch. The kernel rotates in place, beside no keys."""
        kind, own = self.memory.place_of(layer)
        planes = self.memory.planes[kind]
        queries = queries if norm is None else norm(queries)
        if rotation is None:
            return queries
        if planes.kernels is None:
            return rotation.turn(queries)
        none, ours = queries[:, :0], planes.token_rows_of(own)
        planes.kernels.turn_and_write(
            (queries, none, none), rotation.angles, ours, self.slots[kind]
        )
        return queries

    def turn_and_write_latents(self, layer: int, latents: Latents, rotation: Rotation) -> None:
        """See Batch."""
        (rows, norm, queries, turned), rank = latents, len(latents.norm.weight)
        both = rotation.turn(torch.cat((queries, rows[..., rank:]), 1))
        turned.copy_(both[:, :-1])
        self.write(layer, torch.cat((norm(rows[..., :rank]), both[:, -1:]), 2))

    def latent_parts(self, sizes: LatentSizes) -> Sequence[LatentPart]:
        """See Batch. Divided once for all layers."""
        if self._latent_parts is None:
            singles, chunks = self._spans
            runs = divide(len(singles), chunks, sizes, LEAST_EXPANDED)
            self._latent_parts = [self._latent_part(run) for run in runs]
        return self._latent_parts

    def _latent_part(self, run: Run) -> LatentPart:
        singles, chunks = self._spans
        ours = chunks[run.chunks.start : run.chunks.stop]
        if run.expanded:
            return LatentPart(run.rows, expanded=HostChunk(self.memory, ours[0]))
        absorbed = SpanAttention(self.memory.planes[0], singles[: run.singles], ours)
        return LatentPart(run.rows, absorbed)

    def recurrence(
        self, layer: int, weights: RecurrentWeights, inputs: RecurrentInputs
    ) -> Tensor:
        """See Batch."""
        return self._recurrence.recurrence(self.memory.states(layer), weights, inputs)

    def write(self, layer: int, *parts: Tensor) -> None:
        """See Batch."""
        kind, own = self.memory.place_of(layer)
        self.memory.planes[kind].write(own, self.slots[kind], *parts)

    def attend(self, layer: int, style: AttentionStyle, queries: Tensor) -> Tensor:
        """See Batch."""
        kind, own = self.memory.place_of(layer)
        return self._attention[kind].attend(own, style, queries)

    def _places(self, spans: Sequence[Span]) -> tuple[Tensor, Sequence[Tensor]]:
        """Positions of all tokens, and their slots in the layers of each kind."""
        size = self.memory.block_size
        at = [(span, range(span.start, span.start + span.length)) for span in spans]
        positions = self._row([position for _, ours in at for position in ours])
        blocks = self._row([span.blocks[i // size] for span, ours in at for i in ours])
        return positions, [one.slots(blocks, positions) for one in self.memory.planes]

    def _row(self, numbers: Sequence[int]) -> Tensor:
        return long_row(numbers).to(self.memory.block_rows.device)


def long_row(numbers: Sequence[int]) -> Tensor:
    """An int64 tensor on the CPU; faster than `torch.tensor`, which inspects each number."""
    return torch.frombuffer(array("q", numbers), dtype=torch.int64)
