"""KV memory without an engine: one region, and which of its blocks a hand-over moves."""

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
    """Touched, so that no page is missing when it counts; in large pages, as the engine's."""

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
        """Of the first byte."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    @property
    def bytes(self) -> memoryview:
        """All of it."""
        return memoryview(self._map)

    @property
    def kv(self) -> KvMemory:
        """As a connector wants it."""
        blocks = self.num_bytes // self.block_bytes
        region = KvRegion(self.address, self.block_bytes, blocks, "cpu")
        layout = KvLayout("bytes", 1, 1, (self.block_bytes,))
        return KvMemory(FINGERPRINT, layout, [region], self.level)

    def blocks(
        self, num_bytes: int, placing: Placing, seed: int, times: int = 1
    ) -> list[list[int]]:
        """The blocks of some hand-overs: neighbours each, or from all over the memory."""
        count, everything = (
            num_bytes // self.block_bytes,
            range(self.num_bytes // self.block_bytes),
        )
        chosen = list(everything[: count * times])
        if placing == "scattered":
            chosen = random.Random(seed).sample(everything, count * times)
        return [chosen[i * count : (i + 1) * count] for i in range(times)]
