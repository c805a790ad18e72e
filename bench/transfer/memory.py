"""KV memory without an engine: one region, and the blocks that a hand-over moves."""

import ctypes
import mmap
import random
from dataclasses import dataclass, field
from typing import Literal

from engine.api import KvRegion
from kv_transfer.checking import CheckLevel
from kv_transfer.factory import KvMemory
from kv_transfer.layout import KvLayout

Placing = Literal["contiguous", "scattered"]
FINGERPRINT = "bench"


@dataclass(slots=True)
class Memory:
    """KV memory whose pages are all touched in advance; in huge pages, like the engine's."""

    num_bytes: int
    block_bytes: int
    level: CheckLevel = CheckLevel.OFF
    _map: mmap.mmap = field(init=False)

    def __post_init__(self) -> None:
        self._map = mmap.mmap(-1, self.num_bytes)
        self._map.madvise(mmap.MADV_HUGEPAGE)
        ctypes.memset(self.address, 1, self.num_bytes)

    @property
    def address(self) -> int:
        """The address of the first byte."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    @property
    def bytes(self) -> memoryview:
        """The whole memory."""
        return memoryview(self._map)

    @property
    def kv(self) -> KvMemory:
        """The memory as a connector's KvMemory."""
        blocks = self.num_bytes // self.block_bytes
        region = KvRegion(self.address, self.block_bytes, blocks, "cpu")
        layout = KvLayout("bytes", 1, 1, (self.block_bytes,))
        return KvMemory(FINGERPRINT, layout, [region], self.level)

    def blocks(
        self, num_bytes: int, placing: Placing, seed: int, times: int = 1
    ) -> list[list[int]]:
        """The blocks of some hand-overs: contiguous, or scattered over the memory."""
        count, everything = (
            num_bytes // self.block_bytes,
            range(self.num_bytes // self.block_bytes),
        )
        chosen = list(everything[: count * times])
        if placing == "scattered":
            chosen = random.Random(seed).sample(everything, count * times)
        return [chosen[i * count : (i + 1) * count] for i in range(times)]
