"""The machine's ceilings, measured in the same run on as many threads.

The best of several runs counts, because a ceiling that is too low would flatter the results.
On a shared host it changes by half within seconds, so it is measured before and after a round.
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

    def better(self, other: "Rates") -> "Rates":
        """The higher of both for each rate."""
        operations = max(self.operations, other.operations)
        return Rates(self.threads, operations, max(self.read_bytes, other.read_bytes))

    def seconds(self, operations: float, read_bytes: float) -> float:
        """The shortest time for this work: the longer of that of operations and of bytes."""
        return max(operations / self.operations, read_bytes / self.read_bytes)


class Meter:
    """Keeps the operands, 2 GiB, so that a measurement takes half a second."""

    def __init__(self) -> None:
        self._one = torch.randn(SIDE, SIDE).bfloat16()
        self._much = torch.ones(READ_BYTES // 4)

    def measure(self) -> Rates:
        """Measure both rates, on torch's threads."""
        multiplied = _best(lambda: torch.mm(self._one, self._one))
        summed = _best(lambda: self._much.sum())
        return Rates(torch.get_num_threads(), 2 * SIDE**3 / multiplied, READ_BYTES / summed)


def _best(call: Callable[[], object]) -> float:
    times = list[float]()
    for _ in range(RUNS):
        since = time.perf_counter()
        call()
        times.append(time.perf_counter() - since)
    return min(times)
