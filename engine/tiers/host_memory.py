"""Slots of host memory, each as large as a KV block, and copies between the two.

On a GPU the slots are pinned and copies run on a stream of their own: behind the batch that was
launched last, and before the one that is launched next. On a CPU they are done when the call
returns, by one thread: torch's would cost more than they bring, where others want the cores. A
KV block is one contiguous stretch for all layers, so a copy needs no gathering; of
blocks that lie behind one another in both places, one call moves all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.tiers.moves import Copy


@dataclass(frozen=True, slots=True)
class Copied:
    """The end of some copies; None: they are done."""

    event: torch.cuda.Event | None = None

    def wait(self) -> None:
        """Until the bytes are where they belong. Any thread may."""
        if self.event is not None:
            self.event.synchronize()


DONE = Copied()


class HostMemory:
    """`blocks` [blocks, bytes] is KV memory as bytes; `slots` [slots, bytes] is ours."""

    def __init__(self, blocks: Tensor, slots: int) -> None:
        self._blocks, on_gpu = blocks, blocks.device.type == "cuda"
        size = slots, blocks.shape[1]
        self.slots = torch.empty(size, dtype=torch.uint8, pin_memory=on_gpu)
        self._stream = torch.cuda.Stream(blocks.device) if on_gpu else None

    def carry_out(self, copies: Sequence[Copy]) -> Copied:
        """One after the other, each as if the former were done; what is computed from now on
        finds them done.
        """
        if self._stream is None:
            self._copy(copies)
            return DONE
        computing = torch.cuda.current_stream(self._blocks.device)
        self._stream.wait_stream(computing)
        with torch.cuda.stream(self._stream):
            self._copy(copies)
            event = torch.cuda.Event()
            event.record(self._stream)
        computing.wait_event(event)
        return Copied(event)

    def _copy(self, copies: Sequence[Copy]) -> None:
        for first, count in _runs(copies):
            block = self._blocks[first.block : first.block + count]
            slot = self.slots[first.slot : first.slot + count]
            into, source = (slot, block) if first.out else (block, slot)
            if self._stream is None:
                np.copyto(into.numpy(), source.numpy())
            else:
                into.copy_(source, non_blocking=True)


def _runs(copies: Sequence[Copy]) -> Iterator[tuple[Copy, int]]:
    """The first of those that follow one another in both places, and how many they are."""
    begin = 0
    for end in range(1, len(copies) + 1):
        first, count = copies[begin], end - begin
        follows = end < len(copies) and copies[end] == Copy(
            first.block + count, first.slot + count, first.out
        )
        if not follows:
            yield first, count
            begin = end
