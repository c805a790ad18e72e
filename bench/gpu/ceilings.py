"""The device's peak rates, measured in the same run; they turn floors into seconds."""

from dataclasses import dataclass
from functools import partial

import torch

from bench.gpu.row import Run
from bench.gpu.timing import Timer
from engine.kernels.floor import Floor

COPY_BYTES, SIDE = 4 << 30, 8192  # larger than any cache, and enough to fill any GPU
SMALL_COPY_BYTES, SMALL_SIDE = 16 << 20, 256


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Bytes per second read and written by a copy; operations per second of square products.

    `float8` None: torch has no such product on this device, and bfloat16's is the ceiling.
    """

    bandwidth: float
    bfloat16: float
    float8: float | None = None

    def seconds(self, floor: Floor) -> float:
        """The shortest time for a floor: the longer of its bytes' and its operations' time."""
        rate = self.float8 if floor.unit == "float8" and self.float8 else self.bfloat16
        return max(floor.bytes / self.bandwidth, floor.operations / rate)


def measure(device: torch.device, timer: Timer) -> Ceilings:
    """Measure the peak rates; takes 8 GiB of a GPU's memory meanwhile."""
    large = device.type == "cuda"
    size, side = (COPY_BYTES, SIDE) if large else (SMALL_COPY_BYTES, SMALL_SIDE)
    bandwidth = 2 * size / timer.seconds(_copy(size, device))
    one = torch.randn(side, side, dtype=torch.bfloat16, device=device)
    other = torch.randn(side, side, dtype=torch.bfloat16, device=device)
    bfloat16 = 2 * side**3 / timer.seconds(lambda: one @ other)
    return Ceilings(bandwidth, bfloat16, _float8(one, other, timer) if large else None)


def _copy(size: int, device: torch.device) -> Run:
    """A copy; its memory is freed with it."""
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    return partial(torch.empty_like(source).copy_, source)


def _float8(one: torch.Tensor, other: torch.Tensor, timer: Timer) -> float | None:
    """Operations per second of cuBLAS's fp8 product; None if it is not supported here."""
    unit = torch.ones((), device=one.device)
    try:
        left, right = one.to(torch.float8_e4m3fn), other.to(torch.float8_e4m3fn)

        def product() -> torch.Tensor:
            return torch._scaled_mm(
                left, right.T, unit, unit, out_dtype=torch.bfloat16, use_fast_accum=True
            )

        return float(2 * len(one) ** 3 / timer.seconds(product))
    except (RuntimeError, ValueError, AttributeError):
        return None
