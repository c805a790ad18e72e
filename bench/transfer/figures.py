"""Figures of one line: times in, rates and shares out. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from bench.load import percentile

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
GIGA, MICRO = 1e9, 1e6
UNITS = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
MOST, FEWEST, ABOUT_BYTES = 200, 5, 1536 * MIB


@dataclass(frozen=True, slots=True)
class Figures:
    """`num_bytes` moved several times, each in so many seconds."""

    num_bytes: int
    seconds: Sequence[float]

    @property
    def rate(self) -> float:
        """Bytes per second at the median."""
        return self.num_bytes / median(self.seconds)

    def share_of(self, floor: "Figures") -> float:
        """How much of the floor's rate is reached."""
        return self.rate / floor.rate

    def __str__(self) -> str:
        p50, p99 = (percentile(self.seconds, share) * MICRO for share in (0.5, 0.99))
        return f"{self.rate / GIGA:7.2f} GB/s, p50 {p50:9.1f} p99 {p99:9.1f} us"


@dataclass(frozen=True, slots=True)
class Stages:
    """When one hand-over was where: seconds on the clock that all processes here share.

    The ticket was asked for at `offered` in the source's process; it was here, and the pull
    begun, at `pulled`. The first byte was ordered at `ordered`, the last was here at `read`;
    that it counts was known to the engine's thread at `arrived`.
    """

    offered: float
    pulled: float
    ordered: float
    read: float
    arrived: float

    @property
    def seconds(self) -> float:
        """From the offer to Arrived."""
        return self.arrived - self.offered

    @property
    def fixed(self) -> float:
        """The same without the bytes."""
        return self.seconds - (self.read - self.ordered)

    def split(self) -> dict[str, float]:
        """Where the time went."""
        return {
            "offer, and its ticket through a pipe": self.pulled - self.offered,
            "pull: asked for, told, read ordered": self.ordered - self.pulled,
            "bytes": self.read - self.ordered,
            "settled, and told to the engine's thread": self.arrived - self.read,
        }


def size_name(num_bytes: int) -> str:
    """As in 64 KiB."""
    for unit, name in UNITS:
        if num_bytes >= unit and num_bytes % unit == 0:
            return f"{num_bytes // unit} {name}"
    return f"{num_bytes} B"


def repeats(num_bytes: int) -> int:
    """How often a size is moved, so that all sizes take about as long."""
    return max(FEWEST, min(MOST, ABOUT_BYTES // num_bytes))
