"""A Batch whose numbers are tensors on a device, with attention by kernels there.

Nothing here waits for the device, and no launch depends on a tensor's contents, so a whole
forward pass can be captured as one CUDA graph, and replayed with other numbers.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from engine.attention.kv_memory import KvMemory
from engine.attention.rotation import Rotation
from engine.kernels.contract import (
    AttentionIo,
    Chunks,
    Contexts,
    HeadNorms,
    Latents,
    LayerKv,
    PagedKernels,
)
from engine.kernels.style import AttentionStyle


class AttentionMetadata(NamedTuple):
    """Positions, slot mapping, context lengths and block tables of a batch, on the device."""

    positions: Tensor  # [tokens] int64
    slots: Tensor  # [tokens] int64: block * block_size + offset; -1: padding
    lengths: Tensor  # [sequences] int32 tokens of context, including these; 0: padding
    firsts: Tensor  # [sequences + 1] int32 rows where chunks begin, from the first chunk's on
    tables: Tensor  # [sequences, blocks] int32


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

    def turn_and_write_latents(self, layer: int, latents: Latents, rotation: Rotation) -> None:
        """See Batch. One launch."""
        angles, kv = (rotation.table, rotation.positions), self._kv(layer)
        self.kernels.turn_and_write_latents(latents, angles, kv, self.metadata.slots)

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
        if count < len(queries):
            contexts = Contexts(tables[count:], lengths[count:])
            chunks = Chunks(firsts[: len(tables) - count + 1], self.longest)
            io = AttentionIo(queries[count:], read[count:])
            self.kernels.prefill_attention(io, kv, contexts, chunks, style)

    def _kv(self, layer: int) -> LayerKv:
        return LayerKv(self.memory.blocks, layer, self.memory.shape.value_width)
