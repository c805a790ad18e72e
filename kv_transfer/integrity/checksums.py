"""64-bit XXH3 checksums of blocks (Yann Collet's xxHash); several regions' are combined.

XXH3 reads memory faster than memory can be copied, and releases the GIL meanwhile. Sampled
lines are gathered for many blocks at once: a call for each block would cost more than its
bytes.
"""

import ctypes
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from kv_transfer.blocks.checksum_mapping import checksum_parts
from kv_transfer.blocks.images import image_bytes, images
from kv_transfer.blocks.mapping import BlockMapping
from kv_transfer.checking import LINE_BYTES, STRIDE_BYTES, CheckLevel
from kv_transfer.regions import Region

if TYPE_CHECKING:
    import torch

    from kv_transfer.gpu.device_checksums import DeviceChecksums

Bytes: TypeAlias = NDArray[np.uint8]
Blocks: TypeAlias = "Bytes | torch.Tensor"
"""[blocks, bytes]"""
BYTES_AT_ONCE = 16 << 20
DEVICE_BYTES_AT_ONCE = 256 << 20  # which take 0.1 ms: less would take as long as a launch
LINE = f"V{LINE_BYTES}"
FEWEST_LINES, WORD_BYTES = 4, 8  # of what is summed on a device
Lines: TypeAlias = tuple[int, int]


@dataclass(slots=True)
class BlockChecksums:
    """Checksums of blocks in memory of this process. Those on a device are summed there, and
    only the sums are copied from it (kv_transfer/gpu/sums.py). If the bytes to check are not
    whole lines of one region, they are copied to the host instead.

    `kernels`: use the device path for main memory as well, for tests.
    """

    regions: Sequence[Region]
    kernels: bool = False
    _device: "DeviceChecksums | None" = None
    _memory: list[Blocks] = field(default_factory=list)  # of each region, once it is needed

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, in all regions together."""
        return sum(region.block_bytes for region in self.regions)

    @property
    def blocks_at_once(self) -> int:
        """See Checksums."""
        most = BYTES_AT_ONCE if self._device is None else DEVICE_BYTES_AT_ONCE
        return max(1, most // max(1, self.block_bytes))

    def warm(self) -> None:
        """Prepare everything that runs on a device, before any peer asks."""
        self._look()
        if self._device is not None:
            levels = CheckLevel.SAMPLED, CheckLevel.FULL
            every = [lines_of(self.block_bytes, level) for level in levels]
            self._device.warm([lines for lines in every if lines is not None])

    def of(self, blocks: Sequence[int], level: CheckLevel) -> list[int]:
        """One checksum for each block; IndexError for a block that does not exist."""
        if not blocks:
            return []
        for region in self.regions:
            region.at(min(blocks))
            region.at(max(blocks))
        self._look()
        if self._device and (lines := lines_of(self.block_bytes, level)):
            return self._device.of(blocks, lines)
        return combine_regions([self._of_one(one, blocks, level) for one in self._memory])

    def of_pieces(
        self, cut: BlockMapping, slots: Sequence[Sequence[int]], level: CheckLevel
    ) -> list[int]:
        """One checksum for each block of another layout, whose pieces are in these slots."""
        self._look()
        if (found := self._of_parts(cut, slots, level)) is not None:
            return found
        each = cut.our_slots
        blocks = sorted({slot // each for one in slots for slot in one})
        number = {block: at * each for at, block in enumerate(blocks)}
        here = [[number[slot // each] + slot % each for slot in one] for one in slots]
        theirs = images(
            cut, here, [gather(one, blocks, CheckLevel.FULL) for one in self._memory]
        )
        return combine_regions([self._of_one(one, range(len(slots)), level) for one in theirs])

    def _of_parts(
        self, cut: BlockMapping, slots: Sequence[Sequence[int]], level: CheckLevel
    ) -> list[int] | None:
        """The same on a device; None if it has to be done on the host."""
        if self._device is None:
            return None
        parts = [part for _, part in checksum_parts(cut)]
        # every rank has the same number of heads
        lines = lines_of(image_bytes(parts[0]), level)
        if lines is None:
            return None
        return combine_regions([self._device.of_images(part, slots, lines) for part in parts])

    def _look(self) -> None:
        if self._memory:
            return
        self._memory += map(_blocks, self.regions)
        if len(self.regions) == 1 and (self.kernels or self.regions[0].device != "cpu"):
            from kv_transfer.gpu.device_checksums import DeviceChecksums  # wants Triton

            self._device = DeviceChecksums.of_memory(self._memory[0])

    def _of_one(self, memory: Blocks, blocks: Sequence[int], level: CheckLevel) -> list[int]:
        """Checksums of one region."""
        if level is CheckLevel.FULL and isinstance(memory, np.ndarray):
            rows = _cut(memory, blocks)  # without a copy
        else:
            rows = _cut(gather(memory, blocks, level), range(len(blocks)))
        return [xxh3_64_intdigest(row) for row in rows]


def combine_regions(each: Sequence[Sequence[int]]) -> list[int]:
    """Combine the checksums of each region into one for each block."""
    if len(each) == 1:
        return list(each[0])
    rows = np.array(each, dtype="<u8").T
    return [xxh3_64_intdigest(row.tobytes()) for row in rows]


def lines_of(block_bytes: int, level: CheckLevel) -> Lines | None:
    """How many lines of a block are read, and how far apart they begin.

    None if they are not whole lines, or too few, so that XXH3 uses another algorithm.
    """
    step = LINE_BYTES if level is CheckLevel.FULL else STRIDE_BYTES
    whole, rest = divmod(block_bytes, step)
    lines = whole + (1 if rest else 0)
    if 0 < rest < LINE_BYTES or lines < FEWEST_LINES or block_bytes % WORD_BYTES:
        return None
    return lines, step


def gather(memory: Blocks, blocks: Sequence[int], level: CheckLevel) -> Bytes:
    """A copy of the bytes to check of these blocks: [blocks, bytes], in main memory."""
    if level is CheckLevel.FULL:
        return _here(memory[list(blocks)])
    count, size = memory.shape
    whole = size // STRIDE_BYTES * STRIDE_BYTES
    strides = memory[:, :whole].reshape(count, -1, STRIDE_BYTES)[:, :, :LINE_BYTES]
    if isinstance(strides, np.ndarray):
        strides = strides.view(LINE)  # one copy for each line, not for each byte
    seen = _here(strides[list(blocks)]).view(np.uint8).reshape(len(blocks), -1)
    if whole == size:
        return seen
    last = _here(memory[:, whole : whole + LINE_BYTES][list(blocks)])
    return np.concatenate((seen, last), axis=1)


def _cut(rows: Bytes, which: Sequence[int]) -> Iterator[memoryview]:
    """Some rows of an array, without a numpy call for each."""
    flat, size = rows.data.cast("B"), rows.shape[1]
    return (flat[row * size : (row + 1) * size] for row in which)


def _here(part: Blocks) -> Bytes:
    """The same bytes in main memory."""
    if isinstance(part, np.ndarray):
        return part
    copied: Bytes = part.cpu().numpy()
    return copied


def _blocks(region: Region) -> Blocks:
    shape = region.num_blocks, region.block_bytes
    if region.device != "cpu":
        return _on_device(region, shape)
    memory = (ctypes.c_ubyte * math.prod(shape)).from_address(region.address)
    return np.frombuffer(memoryview(memory), dtype=np.uint8).reshape(shape)


def _on_device(region: Region, shape: tuple[int, int]) -> "torch.Tensor":
    import torch  # only where there is a device

    described = {
        "shape": shape,
        "typestr": "|u1",
        "data": (region.address, False),
        "version": 3,
    }
    return torch.as_tensor(
        SimpleNamespace(__cuda_array_interface__=described), device=region.device
    )
