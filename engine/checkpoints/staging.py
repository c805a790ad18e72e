"""Reads files onto a device, through two small staging buffers in host memory.

While one buffer is copied to the device, the next bytes are read into the other, so a load is
as fast as the slower of disk and bus, and needs no host memory but the buffers. For a CUDA
device the buffers are pinned, and copies have their own stream.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.errors import UnusableCheckpoint

BUFFER_BYTES, BUFFERS = 64 << 20, 2
READERS = 4  # one thread copies from the page cache more slowly than the bus could
PART_BYTES = BUFFER_BYTES // READERS


@dataclass(slots=True)
class _Buffer:
    """A staging buffer; `copied` is the end of the last copy from it."""

    memory: Tensor
    copied: torch.cuda.Event | None = None


@dataclass(slots=True)
class DeviceUploader:
    """Reads parts of files onto one device; for use by one thread."""

    device: torch.device
    buffers: Sequence[_Buffer]
    stream: torch.cuda.Stream | None = None
    _readers: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(READERS))
    _turn: int = 0

    @classmethod
    def on(cls, device: torch.device, size: int = BUFFER_BYTES) -> "DeviceUploader":
        """Two buffers of `size` bytes."""
        cuda = device.type == "cuda"
        memories = [
            torch.empty(size, dtype=torch.uint8, pin_memory=cuda) for _ in range(BUFFERS)
        ]
        stream = torch.cuda.Stream(device) if cuda else None
        return cls(device, [_Buffer(memory) for memory in memories], stream)

    def read(self, file: int, offset: int, count: int) -> Tensor:
        """[count] bytes of an open file, on the device; work launched from now on sees them.

        Raises UnusableCheckpoint if the file is shorter.
        """
        target = torch.empty(count, dtype=torch.uint8, device=self.device)
        if self.stream is not None:  # earlier work may still use the memory
            self.stream.wait_stream(torch.cuda.current_stream(self.device))
        size = len(self.buffers[0].memory)
        for first in range(0, count, size):
            part = target[first : first + size]
            buffer = self._next()
            self._fill(file, offset + first, buffer.memory[: len(part)])
            self._copy(buffer, part)
        if self.stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)
        return target

    def _next(self) -> _Buffer:
        """The least recently used buffer, once its last copy has ended."""
        buffer = self.buffers[self._turn]
        self._turn = (self._turn + 1) % len(self.buffers)
        if buffer.copied is not None:
            buffer.copied.synchronize()
        return buffer

    def _fill(self, file: int, offset: int, memory: Tensor) -> None:
        """Fill a buffer by several threads, each with its part."""
        bytes_ = memory.numpy().data
        parts = [
            (offset + first, bytes_[first : first + PART_BYTES])
            for first in range(0, len(bytes_), PART_BYTES)
        ]
        if len(parts) == 1:
            read_all(file, *parts[0])
            return
        for done in [self._readers.submit(read_all, file, *part) for part in parts]:
            done.result()

    def _copy(self, buffer: _Buffer, target: Tensor) -> None:
        source = buffer.memory[: len(target)]
        if self.stream is None:
            target.copy_(source)
            return
        with torch.cuda.stream(self.stream):
            target.copy_(source, non_blocking=True)
            buffer.copied = torch.cuda.Event()
            buffer.copied.record(self.stream)


def read_all(
    file: int,
    offset: int,
    into: memoryview,
    read: Callable[[int, list[memoryview], int], int] = os.preadv,
) -> None:
    """Fill `into` from a file, repeating short reads."""
    while into:
        if not (count := read(file, [into], offset)):
            raise UnusableCheckpoint("a safetensors file ends before its last tensor")
        into, offset = into[count:], offset + count
