"""A Batch whose numbers are tensors on a device, with attention by kernels there.

Nothing here waits for the device, and no launch depends on a tensor's contents, so a whole
forward pass can be captured as one CUDA graph, and replayed with other numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from engine.attention.kv_memory import KvMemory
from engine.attention.latents import LatentPart, LatentSizes, Run, divide
from engine.attention.paged import Span
from engine.attention.rotation import Rotation
from engine.kernels.contract import (
    AttentionIo,
    Chunks,
    Contexts,
    HeadNorm,
    HeadNorms,
    Latents,
    LayerKv,
    PagedKernels,
    RecurrentIo,
)
from engine.kernels.recurrent import RecurrentInputs, RecurrentWeights
from engine.kernels.stored import take
from engine.kernels.style import AttentionStyle

LEAST_EXPANDED = 256  # tokens: each expanded chunk takes some launches of its own per layer


class AttentionMetadata(NamedTuple):
    """Positions, slot mapping, context lengths and block tables of a batch, on the device;
    and the blocks of its sequences' states, if the model keeps any.
    """

    positions: Tensor  # [tokens] int64
    slots: Tensor  # [tokens] int64: block * block_size + offset; -1: padding
    lengths: Tensor  # [sequences] int32 tokens of context, including these; 0: padding
    firsts: Tensor  # [sequences + 1] int32 rows where chunks begin, from the first chunk's on
    tables: Tensor  # [sequences, blocks] int32
    states: Tensor  # [sequences, state blocks] int32


@dataclass(slots=True, eq=False)
class DeviceBatch:
    """The first `singles` rows are sequences of one token each, the others belong to chunks.

    No chunk has more than `longest` tokens. Built anew for each forward pass, and for each
    capture of one.
    """

    memory: KvMemory
    kernels: PagedKernels
    metadata: AttentionMetadata
    singles: int
    longest: int = 0
    chunks: Sequence[Span] = ()  # where they are known, long ones over latents are expanded
    _latent_parts: Sequence[LatentPart] | None = None

    @property
    def positions(self) -> Tensor:
        """See Batch, here and below."""
        return self.metadata.positions

    def turn_and_write(
        self,
        layer: int,
        parts: tuple[Tensor, Tensor, Tensor],
        rotation: Rotation | None,
        norms: HeadNorms | None = None,
    ) -> Tensor:
        """See Batch. One launch."""
        angles = None if rotation is None else (rotation.table, rotation.positions)
        kv, slots = self._kv(layer), self.metadata.slots
        return self.kernels.turn_and_write(parts, angles, kv, slots, norms)

    def turn(
        self, layer: int, queries: Tensor, rotation: Rotation | None, norm: HeadNorm | None
    ) -> Tensor:
        """See Batch. One launch."""
        angles = None if rotation is None else (rotation.table, rotation.positions)
        return self.kernels.turn(queries, angles, norm)

    def turn_and_write_latents(self, layer: int, latents: Latents, rotation: Rotation) -> None:
        """See Batch. One launch."""
        angles, kv = (rotation.table, rotation.positions), self._kv(layer)
        self.kernels.turn_and_write_latents(latents, angles, kv, self.metadata.slots)

    def latent_parts(self, sizes: LatentSizes) -> Sequence[LatentPart]:
        """See Batch. Divided once for all layers."""
        if self._latent_parts is None:
            runs = divide(self.singles, self.chunks, sizes, LEAST_EXPANDED)
            self._latent_parts = [self._latent_part(run) for run in runs]
        return self._latent_parts

    def _latent_part(self, run: Run) -> LatentPart:
        """Metadata about sequences has all singles first, then the chunks."""
        of, begin, end = self.metadata, run.chunks.start, run.chunks.stop
        some = slice(self.singles + begin - run.singles, self.singles + end)
        firsts = of.firsts[begin : end + 1]
        own = of._replace(
            lengths=of.lengths[some],
            tables=of.tables[some],
            states=of.states[some],
            firsts=firsts - firsts[:1],
        )
        if run.expanded:
            return LatentPart(run.rows, expanded=DeviceChunk(self, own, self.chunks[begin]))
        longest = max((span.length for span in self.chunks[begin:end]), default=0)
        ours = DeviceBatch(self.memory, self.kernels, own, run.singles, longest)
        return LatentPart(run.rows, ours)

    def write(self, layer: int, *parts: Tensor) -> None:
        """See Batch."""
        self.kernels.write(parts, self._kv(layer), self.metadata.slots)

    def attend(self, layer: int, style: AttentionStyle, queries: Tensor) -> Tensor:
        """See Batch. The result is a new tensor."""
        read = self.room_for(queries)
        self.attend_into(layer, style, queries, read)
        return read

    def room_for(self, queries: Tensor) -> Tensor:
        """An uninitialized tensor for the result: [tokens, heads * value width]."""
        width = self.memory.shape.value_width or queries.shape[2]
        return queries.new_empty(len(queries), queries.shape[1] * width)

    def attend_into(
        self, layer: int, style: AttentionStyle, queries: Tensor, read: Tensor
    ) -> None:
        """Attend with one kernel for single tokens and another for chunks, into `read`."""
        count, kv = self.singles, self._kv(layer)
        tables, lengths, firsts = (
            self.metadata.tables,
            self.metadata.lengths,
            self.metadata.firsts,
        )
        if count:
            contexts = Contexts(tables[:count], lengths[:count])
            io = AttentionIo(queries[:count], read[:count])
            self.kernels.decode_attention(io, kv, contexts, style)
        if count < len(tables):  # rows behind all sequences are padding, which nobody reads
            contexts = Contexts(tables[count:], lengths[count:])
            chunks = Chunks(firsts[: len(tables) - count + 1], self.longest)
            io = AttentionIo(queries[count:], read[count:])
            self.kernels.prefill_attention(io, kv, contexts, chunks, style)

    def recurrence(
        self, layer: int, weights: RecurrentWeights, inputs: RecurrentInputs
    ) -> Tensor:
        """See Batch. The result is a new tensor."""
        read = self.room_for_values(weights, inputs)
        self.recurrence_into(layer, weights, inputs, read)
        return read

    def room_for_values(self, weights: RecurrentWeights, inputs: RecurrentInputs) -> Tensor:
        """An uninitialized tensor for the result of a recurrent layer: [tokens, values]."""
        return inputs.mixed.new_empty(len(inputs.mixed), weights.shape.values)

    def recurrence_into(
        self, layer: int, weights: RecurrentWeights, inputs: RecurrentInputs, read: Tensor
    ) -> None:
        """Single tokens in one launch, and chunks in a few, into `read`."""
        count, states, of = self.singles, self.memory.states(layer), self.metadata
        mixed, rates = inputs
        if count:
            io = RecurrentIo(RecurrentInputs(mixed[:count], rates[:count]), read[:count])
            contexts = Contexts(of.states[:count], of.lengths[:count])
            self.kernels.recurrent_step(io, states, contexts, weights)
        if count < len(of.states):
            io = RecurrentIo(RecurrentInputs(mixed[count:], rates[count:]), read[count:])
            contexts = Contexts(of.states[count:], of.lengths[count:])
            chunks = Chunks(of.firsts[: len(of.states) - count + 1], self.longest)
            self.kernels.recurrent_chunks(io, states, contexts, chunks, weights)

    def _kv(self, layer: int) -> LayerKv:
        kind, own = self.memory.place_of(layer)
        planes = self.memory.planes[kind]
        return LayerKv(planes.blocks, own, planes.value_width)


class DeviceChunk:
    """See ExpandedChunk. Nothing waits for the device: the host knows the sizes."""

    def __init__(self, batch: DeviceBatch, metadata: AttentionMetadata, span: Span) -> None:
        """`metadata` is about this sequence alone."""
        self._batch, size = batch, batch.memory.block_size
        count, device = -(-(span.start + span.length) // size), metadata.tables.device
        self._blocks = metadata.tables[0, :count]
        made = torch.arange(count, dtype=torch.int32, device=device)[None]
        self._contexts = Contexts(made, metadata.lengths)
        self._chunks = Chunks(metadata.firsts, span.length)

    def latents(self, layer: int) -> Tensor:
        """See ExpandedChunk."""
        return take(self._batch.memory.blocks[:, layer, 0, 0], self._blocks).flatten(0, 1)

    def attend(
        self, style: AttentionStyle, queries: Tensor, made: Tensor, value_width: int
    ) -> Tensor:
        """See ExpandedChunk. What was made is cut into blocks where it lies."""
        heads, width = made.shape[1], made.shape[3]
        blocks = made.view(2, heads, len(self._blocks), -1, width)
        kv = LayerKv(blocks.permute(2, 0, 1, 3, 4).unsqueeze(1), 0, value_width)
        read = queries.new_empty(len(queries), heads * value_width)
        io = AttentionIo(queries, read)
        kernels = self._batch.kernels
        kernels.prefill_attention(io, kv, self._contexts, self._chunks, style)
        return read
