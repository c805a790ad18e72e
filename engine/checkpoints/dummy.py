"""Dummy weights (`--load-format dummy`): random, and the same on every node and rank.

A number depends only on the seed, its tensor's name and its index in the tensor; not on the
device, nor on which part of the tensor is loaded. So nodes and ranks with one config and one
seed have the same model. The deviations keep the scale of activations: 1 / sqrt(n) for the
weights of a linear layer with n inputs; norms are near one, and biases small. Numbers are
uniform, and are generated on the device, a tile at a time.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

import torch
from torch import Tensor

from engine.checkpoints.linear import Linear
from engine.checkpoints.store import File, TensorStore
from engine.checkpoints.weight_loader import WeightLoader
from engine.kernels.mixing import GOLDEN, mix, signed, uniform

TITLE = "making weights"
TILE_ENTRIES, CPU_TILE_ENTRIES = 1 << 24, 1 << 16
NORM, NORM_DEVIATION, BIAS_DEVIATION = "norm", 0.1, 0.02
UNIFORM_DEVIATION = 1 / math.sqrt(12)  # of uniform numbers between 0 and 1


@dataclass(frozen=True, slots=True)
class DummyTensorFile:
    """A File with one dummy tensor of `shape`."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    seed: int

    @property
    def num_bytes(self) -> int:
        """Of the whole tensor."""
        return math.prod(self.shape) * self.dtype.itemsize

    def get_tensor(self, name: str) -> Tensor:
        """See Tensors."""
        return self.get_slice(name)[()]

    def get_slice(self, name: str) -> "DummyTensorSlice":
        """See File; only parts that are read are generated."""
        return DummyTensorSlice(self, name)


@dataclass(frozen=True, slots=True)
class DummyTensorSlice:
    """See Slice: a dummy tensor whose parts are generated when they are read."""

    file: DummyTensorFile
    name: str
    key: tuple[int, int] = field(init=False)

    def __post_init__(self) -> None:
        """Hash seed and name to the two halves of the random numbers' key."""
        digest = blake2b(f"{self.file.seed}/{self.name}".encode(), digest_size=8).digest()
        halves = int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")
        object.__setattr__(self, "key", tuple(map(signed, halves)))

    def get_shape(self) -> list[int]:
        """Of the whole tensor."""
        return list(self.file.shape)

    def __getitem__(self, index: tuple[slice, ...]) -> Tensor:
        """See Slice. Only that part is generated."""
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
        """The index in the whole tensor of the first number of each row of the part."""
        device, at = self.file.device, torch.zeros(1, dtype=torch.int64)
        stride = math.prod(self.file.shape)
        for size, span in zip(self.file.shape[:-1], spans[:-1], strict=True):
            stride //= size
            steps = torch.arange(span.start, span.stop) * stride
            at = (at[:, None] + steps).flatten()
        return at.to(device)

    def _fill(self, part: Tensor, rows: Tensor, columns: range) -> None:
        """Fill `part` [rows, columns], a tile at a time."""
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
        """The numbers at these indices of the tensor, float32."""
        low, high = self.key
        bits = places.to(torch.int32).mul_(signed(GOLDEN)).bitwise_xor_(low)
        spare = torch.empty_like(bits)
        mix(bits, spare)
        bits ^= high
        mix(bits, spare)
        middle, deviation = init_mean_and_deviation(self.name, self.file.shape)
        return uniform(bits).sub_(0.5).mul_(deviation / UNIFORM_DEVIATION).add_(middle)


@dataclass(slots=True)
class ShapeRecorder(WeightLoader):
    """Builds a model without a checkpoint, and records the names and shapes that it takes.

    The tensors that it returns are on the meta device. It claims to contain no tensor, so a
    model takes each part in its plainest form.
    """

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        """False: no optional tensor exists."""
        return False

    def whole(self, name: str, *shape: int) -> Tensor:
        """See WeightLoader."""
        self.shapes[name] = shape
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def stacked_linears(self, name: str, count: int, outputs: int, inputs: int) -> list[Linear]:
        """See WeightLoader; as they are."""
        return [self.linear(one) for one in self.whole(name, count, outputs, inputs)]


def init_mean_and_deviation(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Mean and standard deviation of a dummy tensor's numbers."""
    if len(shape) >= 2:  # [.., outputs, inputs]
        return 0.0, 1 / math.sqrt(shape[-1])
    return (1.0, NORM_DEVIATION) if NORM in name else (0.0, BIAS_DEVIATION)


def dummy_store(
    shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, device: torch.device, seed: int
) -> TensorStore:
    """Dummy tensors of these `shapes` in `dtype`, generated on `device` when read."""
    tensors: dict[str, File] = {
        name: DummyTensorFile(shape, dtype, device, seed) for name, shape in shapes.items()
    }
    numbers = sum(math.prod(shape) for shape in shapes.values())
    return TensorStore(tensors, numbers * dtype.itemsize, TITLE)
