"""A Batch whose numbers are tensors on a device, and whose attention is by kernels there.

Nothing here asks the device anything, and no launch depends on what is in a tensor: all of a
forward pass can be captured as one CUDA graph, and replayed over other numbers.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention.kv_memory import KvMemory
from engine.attention.rotation import Rotation
from engine.attention.staging import DeviceFields
from engine.kernels.contract import Chunks, Contexts, LayerKv, PagedKernels
from engine.kernels.style import AttentionStyle


@dataclass(slots=True, eq=False)
class DeviceBatch:
    """The first `singles` rows are sequences of one token each, the others are of chunks.

    `longest` is no less than the tokens of any chunk. Of the device's fields all but those of
    singles are for chunks. Built anew for each forward pass, and for each one that is captured.
    """

    memory: KvMemory
    kernels: PagedKernels
    fields: DeviceFields
    singles: int
    longest: int = 0

    @property
    def positions(self) -> Tensor:
        """See Batch, here and below."""
        return self.fields.positions

    def turn_and_write(
        self,
        layer: int,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        rotation: Rotation | None,
    ) -> Tensor:
        """In one launch."""
        angles = None if rotation is None else (rotation.table, rotation.positions)
        parts = queries, keys, values
        return self.kernels.turn_and_write(parts, angles, self._kv(layer), self.fields.slots)

    def write(self, layer: int, *parts: Tensor) -> None:
        """As they are."""
        self.kernels.write(parts, self._kv(layer), self.fields.slots)

    def attend(self, layer: int, style: AttentionStyle, queries: Tensor) -> Tensor:
        """Singles and chunks each by their own kernel."""
        some, count, kv = list[Tensor](), self.singles, self._kv(layer)
        tables, lengths, firsts = self.fields.tables, self.fields.lengths, self.fields.firsts
        if count:
            contexts = Contexts(tables[:count], lengths[:count])
            some.append(self.kernels.decode_attention(queries[:count], kv, contexts, style))
        if count < len(queries):
            contexts = Contexts(tables[count:], lengths[count:])
            chunks = Chunks(firsts[: len(tables) - count + 1], self.longest)
            ours = queries[count:]
            some.append(self.kernels.prefill_attention(ours, kv, contexts, chunks, style))
        return some[0] if len(some) == 1 else torch.cat(some)

    def _kv(self, layer: int) -> LayerKv:
        return LayerKv(self.memory.blocks, layer, self.memory.shape.value_width)
