"""Checksums of blocks on a device, on a separate stream that waits for no step.

Blocks are final before their checksums are requested, so no synchronization is needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kv_transfer.blocks.images import IMAGES_BYTES, image_bytes, stretches
from kv_transfer.blocks.mapping import BlockMapping
from kv_transfer.checking import LINE_BYTES, STRIDE_BYTES
from kv_transfer.gpu.moving import move
from kv_transfer.gpu.sums import sums

OTHER_BYTES = 4096, 4096 + 8  # sizes of blocks: a multiple of 16 words, and not
FEWEST_LINES, WORD_BYTES = 4, 8
STEPS_BYTES = LINE_BYTES, STRIDE_BYTES  # distances between the lines that are read


@dataclass(frozen=True, slots=True)
class DeviceChecksums:
    """Checksums of one region, `memory` [blocks, bytes] uint8; no `stream` for main memory."""

    memory: Tensor
    stream: torch.cuda.Stream | None = None

    @classmethod
    def of_memory(cls, memory: Tensor | NDArray[np.uint8]) -> "DeviceChecksums":
        """For memory on a device with a stream of its own, otherwise without."""
        if isinstance(memory, np.ndarray):
            return cls(torch.from_numpy(memory))
        device = memory.device
        return cls(memory, torch.cuda.Stream(device) if device.type == "cuda" else None)

    def warm(self, lines: Sequence[tuple[int, int]]) -> None:
        """Launch every kind of kernel that `of` and `of_images` may need, for blocks of which
        these `lines` are read, so that nothing is compiled while peers wait. Reads the first
        block.

        For blocks of another layout a kernel's kind depends only on what their size is
        divisible by.
        """
        device = self.memory.device
        with torch.cuda.stream(self.stream):
            for some in lines:
                sums(self.memory, [0], *some)
            for size in OTHER_BYTES:
                image = torch.zeros((1, size), dtype=torch.uint8, device=device)
                for step in STEPS_BYTES:
                    sums(image, [0], FEWEST_LINES, step)
            for size in (1, WORD_BYTES):
                source, target = torch.zeros((2, WORD_BYTES), dtype=torch.uint8, device=device)
                place = np.array([source.data_ptr()]), np.array([target.data_ptr()])
                move(*place, np.array([size]), device)

    def of(self, blocks: Sequence[int], lines: tuple[int, int]) -> list[int]:
        """One checksum for each block, over this many lines, this many bytes apart."""
        with torch.cuda.stream(self.stream):
            return sums(self.memory, blocks, *lines)

    def of_images(
        self, cut: BlockMapping, slots: Sequence[Sequence[int]], lines: tuple[int, int]
    ) -> list[int]:
        """One checksum for each block of another layout, whose pieces are in these slots of
        ours.

        For one region on either side.
        """
        size = image_bytes(cut)
        most = max(1, IMAGES_BYTES // size)
        with torch.cuda.stream(self.stream):
            return [
                one
                for start in range(0, len(slots), most)
                for one in self._of_some(cut, slots[start : start + most], size, lines)
            ]

    def _of_some(
        self,
        cut: BlockMapping,
        slots: Sequence[Sequence[int]],
        size: int,
        lines: tuple[int, int],
    ) -> list[int]:
        shape = len(slots), size
        whole = torch.zeros(shape, dtype=torch.uint8, device=self.memory.device)
        sources, targets, sizes = stretches(cut, slots, self.memory.shape[1])
        sources, targets = sources + self.memory.data_ptr(), targets + whole.data_ptr()
        move(sources, targets, sizes, self.memory.device)
        return sums(whole, range(len(slots)), *lines)
