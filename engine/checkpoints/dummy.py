"""Weights of any config without a checkpoint's: random, and the same wherever they are made.

A number depends on the seed, its tensor's name and its place in the tensor, and on nothing
else: not on the device, nor on what part of the tensor is asked for. So nodes and ranks of one
config and one seed have one model. The spread keeps activations about as large as they came
in: weights of a product over n inputs have a deviation of 1 / sqrt(n), norms are near one, and
biases are small. Numbers are uniform, made where they are needed, a tile at a time.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

import torch
from torch import Tensor

from engine.checkpoints.shelf import Shelf
from engine.checkpoints.store import File, Store
from engine.kernels.mixing import GOLDEN, mix, signed, uniform

TITLE = "making weights"
TILE_ENTRIES, CPU_TILE_ENTRIES = 1 << 24, 1 << 16
NORM, NORM_DEVIATION, BIAS_DEVIATION = "norm", 0.1, 0.02
UNIFORM_DEVIATION = 1 / math.sqrt(12)  # of numbers between 0 and 1


@dataclass(frozen=True, slots=True)
class Made:
    """Stands for the file of one tensor, `shape`d as the config says."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    seed: int

    @property
    def num_bytes(self) -> int:
        """Of all of it."""
        return math.prod(self.shape) * self.dtype.itemsize

    def get_tensor(self, name: str) -> Tensor:
        """All of it."""
        return self.get_slice(name)[()]

    def get_slice(self, name: str) -> "MadeSlice":
        """To be made in parts."""
        return MadeSlice(self, name)


@dataclass(frozen=True, slots=True)
class MadeSlice:
    """A tensor that was not made yet."""

    file: Made
    name: str
    key: tuple[int, int] = field(init=False)

    def __post_init__(self) -> None:
        """Two halves of what its numbers are mixed from."""
        digest = blake2b(f"{self.file.seed}/{self.name}".encode(), digest_size=8).digest()
        halves = int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")
        object.__setattr__(self, "key", tuple(map(signed, halves)))

    def get_shape(self) -> list[int]:
        """Of all of it."""
        return list(self.file.shape)

    def __getitem__(self, index: tuple[slice, ...]) -> Tensor:
        """Only that part is made."""
        shape = self.file.shape
        spans = [range(size)[one] for size, one in zip(shape, index, strict=False)]
        spans += [range(size) for size in shape[len(index) :]]
        part = torch.empty(
            [len(span) for span in spans], dtype=self.file.dtype, device=self.file.device
        )
        flat = part.view(-1, part.shape[-1]) if shape else part.view(1, 1)
        self._fill(flat, self._rows(spans), spans[-1] if spans else range(1))
        return part

    def _rows(self, spans: list[range]) -> Tensor:
        """Where each row of the part begins in the whole, counted in numbers."""
        device, at = self.file.device, torch.zeros(1, dtype=torch.int64)
        stride = math.prod(self.file.shape)
        for size, span in zip(self.file.shape[:-1], spans[:-1], strict=True):
            stride //= size
            steps = torch.arange(span.start, span.stop) * stride
            at = (at[:, None] + steps).flatten()
        return at.to(device)

    def _fill(self, part: Tensor, rows: Tensor, columns: range) -> None:
        """`part` [rows, columns], a tile at a time."""
        entries = CPU_TILE_ENTRIES if part.device.type == "cpu" else TILE_ENTRIES
        wide = min(len(columns), entries)
        high = max(1, entries // max(1, wide))
        for first in range(0, len(columns), wide or 1):
            some = columns[first : first + wide]
            at = torch.arange(some.start, some.stop, device=part.device)
            for top in range(0, len(rows), high):
                tile = part[top : top + high, first : first + wide]
                tile.copy_(self._numbers(rows[top : top + high, None] + at))

    def _numbers(self, places: Tensor) -> Tensor:
        """Of these places in the tensor, float32."""
        low, high = self.key
        bits = places.to(torch.int32).mul_(signed(GOLDEN)).bitwise_xor_(low)
        spare = torch.empty_like(bits)
        mix(bits, spare)
        bits ^= high
        mix(bits, spare)
        middle, deviation = spread(self.name, self.file.shape)
        return uniform(bits).sub_(0.5).mul_(deviation / UNIFORM_DEVIATION).add_(middle)


@dataclass(slots=True)
class AskingShelf(Shelf):
    """Has nothing, and remembers what it was asked for; what it gives has a shape only.

    Where a checkpoint may store a part in several ways, it is asked for in the plainest.
    """

    asked: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        """Nothing is there."""
        return False

    def whole(self, name: str, *shape: int) -> Tensor:
        """See Shelf."""
        self.asked[name] = shape
        return torch.empty(shape, dtype=self.dtype, device=self.device)


def spread(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Mean and deviation of a tensor's numbers."""
    if len(shape) >= 2:  # [.., outputs, inputs]
        return 0.0, 1 / math.sqrt(shape[-1])
    return (1.0, NORM_DEVIATION) if NORM in name else (0.0, BIAS_DEVIATION)


def dummy_store(
    shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, device: torch.device, seed: int
) -> Store:
    """All of them in `dtype`, made on the device when they are asked for."""
    tensors: dict[str, File] = {
        name: Made(shape, dtype, device, seed) for name, shape in shapes.items()
    }
    numbers = sum(math.prod(shape) for shape in shapes.values())
    return Store(tensors, numbers * dtype.itemsize, TITLE)
