"""Slots of host memory, each as large as a KV block, and copies between the two.

On a GPU the slots are pinned and copies run on their own stream: after the batch that was
launched last, and before the one that is launched next. On a CPU they are done when the call
returns, by one thread: several would cost more than they gain when others use the cores. A KV
block is one contiguous range for all layers, so a copy needs no gathering, and one call moves
all blocks that are contiguous in both places.
"""

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from engine.errors import UnusableTier
from engine.tiers.moves import Copy

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class CopyEvent:
    """Completion of some copies; `event` None: they are already done."""

    event: torch.cuda.Event | None = None

    def wait(self) -> None:
        """Wait until the copies are done. Any thread may call this.

        It sets the device, because CUDA opens device 0 for a thread that has not chosen one.
        """
        if self.event is not None:
            with torch.cuda.device(self.event.device):
                self.event.synchronize()


DONE = CopyEvent()


class HostMemory:
    """`blocks` [blocks, bytes] is KV memory as bytes; `slots` [slots, bytes] is host memory."""

    def __init__(self, blocks: Tensor, slots: int) -> None:
        self._blocks, on_gpu = blocks, blocks.device.type == "cuda"
        self.slots = torch.empty((slots, blocks.shape[1]), dtype=torch.uint8)
        if on_gpu:
            pin(self.slots, torch.cuda.cudart())
            # freed while pinned, its addresses would break other copies of this process
            given_back = weakref.finalize(self, unpin, self.slots.data_ptr())
            given_back.atexit = False
        self._stream = torch.cuda.Stream(blocks.device) if on_gpu else None

    def carry_out(self, copies: Sequence[Copy]) -> CopyEvent:
        """Start copies, each of which sees the results of those before it; work launched from
        now on sees the results of all.
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
        return CopyEvent(event)

    def _copy(self, copies: Sequence[Copy]) -> None:
        for first, count in _runs(copies):
            block = self._blocks[first.block : first.block + count]
            slot = self.slots[first.slot : first.slot + count]
            into, source = (slot, block) if first.out else (block, slot)
            if self._stream is None:
                np.copyto(into.numpy(), source.numpy())
            else:
                into.copy_(source, non_blocking=True)


class CudaRuntime(Protocol):
    """The part of CUDA's runtime that is needed here."""

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802
        """Pin memory; 0 on success."""


def pin(memory: Tensor, runtime: CudaRuntime) -> None:
    """Pin memory, so that copies to and from a device are asynchronous.

    torch's own pinned memory is rounded up to a power of two, which would waste much of a tier
    of many GiB. Raises UnusableTier.
    """
    if error := int(runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)):
        size = memory.nbytes / GIB
        raise UnusableTier(
            f"--kv-offloading-size: {size:.3g} GiB cannot be pinned (CUDA error {error})"
        )


def unpin(address: int) -> None:
    """Undo `pin`, after all copies."""
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaHostUnregister(address)


def _runs(copies: Sequence[Copy]) -> Iterator[tuple[Copy, int]]:
    """Runs of copies that are contiguous in both places: the first, and how many."""
    begin = 0
    for end in range(1, len(copies) + 1):
        first, count = copies[begin], end - begin
        follows = end < len(copies) and copies[end] == Copy(
            first.block + count, first.slot + count, first.out
        )
        if not follows:
            yield first, count
            begin = end
