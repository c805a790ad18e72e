"""The KV memory of all ranks, from the leader's point of view.

On a CPU the followers share their memory with the leader: it has an anonymous file for each,
which the follower sizes and maps, and which the leader maps too, to compute checksums. On
devices each rank's memory is its own, and the leader knows only its address and sizes.
"""

import ctypes
import math
import mmap
import os
from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor

from engine.api import KvRegion
from engine.attention.kv_memory import KvMemory, KvMemoryArgs
from engine.ranks.links import FollowerLinks


class LeadingMemory(KvMemory):
    """Rank 0's KV memory, and the regions of the others. All ranks have the same block ids."""

    _followers: FollowerLinks | None = None
    _others: Sequence[KvRegion] = ()
    _maps: Sequence[mmap.mmap] = ()

    def attach(self, followers: FollowerLinks) -> None:
        """Wait until the followers have allocated their memory."""
        self._followers = followers
        self._others = [
            msgspec.msgpack.decode(frame, type=KvRegion) for frame in followers.receive_all()
        ]
        if self.block_rows.device.type == "cpu":
            pairs = list(zip(followers.memory_fds, self._others, strict=True))
            self._maps = [mmap.mmap(fd, one.block_bytes * one.num_blocks) for fd, one in pairs]
            self._others = [_at(*pair) for pair in zip(self._maps, self._others, strict=True)]

    @property
    def regions(self) -> Sequence[KvRegion]:
        """One region for each rank."""
        return [*super().regions, *self._others]

    def clear_behind(self, block: int, tokens: int) -> None:
        """See KvMemory. Done on all ranks when this returns, so others may write to it."""
        super().clear_behind(block, tokens)
        if self._followers is not None:
            self._followers.clear_behind(block, tokens)


class SharedMemory(KvMemory):
    """A follower's KV memory, in a file that its leader maps as well."""

    def __init__(self, fd: int, kept: KvMemoryArgs) -> None:
        self._fd = fd
        super().__init__(*kept)

    def _zeros(self, size: tuple[int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
        if device.type != "cpu":
            return super()._zeros(size, dtype, device)
        num_bytes = math.prod(size) * dtype.itemsize
        os.ftruncate(self._fd, num_bytes)
        return torch.frombuffer(mmap.mmap(self._fd, num_bytes), dtype=dtype).view(size)


def _at(shared: mmap.mmap, region: KvRegion) -> KvRegion:
    """The same memory, at its address in this process."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(shared))
    return KvRegion(address, region.block_bytes, region.num_blocks, region.device)
