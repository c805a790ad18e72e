"""What this machine does at most: measured in the same run, on as many threads.

The best of some runs counts: a ceiling that is too low would flatter what is held against it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

RUNS = 5
SIDE = 2048
READ_BYTES = 2 << 30
GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Rates:
    """Operations per second of a large bfloat16 product, bytes per second of a long read."""

    threads: int
    operations: float
    read_bytes: float

    def __str__(self) -> str:
        return (
            f"{self.threads} threads: {self.operations / GIGA:.0f} GFLOP/s multiplied, "
            f"{self.read_bytes / GIGA:.1f} GB/s read"
        )

    def seconds(self, operations: float, read_bytes: float) -> float:
        """The shortest time for so much work: whichever of the two takes longer."""
        return max(operations / self.operations, read_bytes / self.read_bytes)


def measure_rates() -> Rates:
    """On torch's threads; takes 2 GiB and some seconds."""
    one = torch.randn(SIDE, SIDE).bfloat16()
    much = torch.ones(READ_BYTES // 4)
    multiplied, summed = _best(lambda: torch.mm(one, one)), _best(lambda: much.sum())
    return Rates(torch.get_num_threads(), 2 * SIDE**3 / multiplied, READ_BYTES / summed)


def _best(call: Callable[[], object]) -> float:
    times = list[float]()
    for _ in range(RUNS):
        since = time.perf_counter()
        call()
        times.append(time.perf_counter() - since)
    return min(times)
