"""A Batch whose numbers are tensors on a device, and whose attention is by kernels there.

Nothing here asks the device anything, and no launch depends on what is in a tensor: all of a
forward pass can be captured as one CUDA graph, and replayed over other numbers.
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
    lengths: Tensor  # [sequences] int32 tokens of context, these among them; 0: nothing
    firsts: Tensor  # [sequences + 1] int32 rows where chunks begin, from the first chunk's on
    tables: Tensor  # [sequences, blocks] int32


@dataclass(slots=True, eq=False)
class DeviceBatch:
    """The first `singles` rows are sequences of one token each, the others are of chunks.

    `longest` is no less than the tokens of any chunk. Built anew for each forward pass, and for
    each one that is captured.
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
        """In one launch."""
        angles = None if rotation is None else (rotation.table, rotation.positions)
        kv, slots = self._kv(layer), self.metadata.slots
        return self.kernels.turn_and_write(parts, angles, kv, slots, norms)

    def turn_and_write_latents(self, layer: int, latents: Latents, rotation: Rotation) -> None:
        """In one launch."""
        angles, kv = (rotation.table, rotation.positions), self._kv(layer)
        self.kernels.turn_and_write_latents(latents, angles, kv, self.metadata.slots)

    def write(self, layer: int, *parts: Tensor) -> None:
        """As they are."""
        self.kernels.write(parts, self._kv(layer), self.metadata.slots)

    def attend(self, layer: int, style: AttentionStyle, queries: Tensor) -> Tensor:
        """Into a tensor of its own."""
        read = self.room_for(queries)
        self.attend_into(layer, style, queries, read)
        return read

    def room_for(self, queries: Tensor) -> Tensor:
        """[tokens, heads * value width], uninitialized, for what `queries` read."""
        width = self.memory.shape.value_width or queries.shape[2]
        return queries.new_empty(len(queries), queries.shape[1] * width)

    def attend_into(
        self, layer: int, style: AttentionStyle, queries: Tensor, read: Tensor
    ) -> None:
        """Singles and chunks each by their own kernel, into `read`."""
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
