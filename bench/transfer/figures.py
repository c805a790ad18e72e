"""Transfer rates and shares of a floor, from measured times. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from bench.load import percentile

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
GIGA, MICRO = 1e9, 1e6
UNITS = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
MOST, FEWEST, ABOUT_BYTES = 200, 5, 640 * MIB
MOST_AT_ONCE, BYTES_AT_ONCE = 8, 128 * MIB


@dataclass(frozen=True, slots=True)
class Figures:
    """`num_bytes` moved several times; `alone` has the seconds of each single transfer.

    If several were under way at once, `together` has the seconds of all divided by their
    number: the cost of one beside others.
    """

    num_bytes: int
    alone: Sequence[float]
    together: Sequence[float] = ()

    @property
    def rate(self) -> float:
        """Bytes per second at the median, of several at once if there were."""
        return self.num_bytes / median(self.together or self.alone)

    def share_of(self, floor: "Figures") -> float:
        """The share of the floor's rate that is reached."""
        return self.rate / floor.rate

    def __str__(self) -> str:
        p50, p99 = (percentile(self.alone, share) * MICRO for share in (0.5, 0.99))
        return f"{self.rate / GIGA:7.2f} GB/s; alone p50 {p50:9.1f} p99 {p99:9.1f} us"


@dataclass(frozen=True, slots=True)
class Stages:
    """The times of one hand-over, in seconds on the clock that all processes here share.

    The ticket was requested at `offered` in the source's process; it was here, and the pull
    begun, at `pulled`. The first read was ordered at `ordered`, and the last byte was here at
    `read`; the engine's thread knew that the transfer was confirmed at `arrived`.
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
        """The same without the time of the reads."""
        return self.seconds - (self.read - self.ordered)

    def split(self) -> dict[str, float]:
        """The time of each stage, by name."""
        return {
            "offer, and its ticket through a pipe": self.pulled - self.offered,
            "pull: asked for, told, read ordered": self.ordered - self.pulled,
            "bytes": self.read - self.ordered,
            "settled, and told to the engine's thread": self.arrived - self.read,
        }


def size_name(num_bytes: int) -> str:
    """A size with a unit, such as 64 KiB."""
    for unit, name in UNITS:
        if num_bytes >= unit and num_bytes % unit == 0:
            return f"{num_bytes // unit} {name}"
    return f"{num_bytes} B"


def repeats(num_bytes: int) -> int:
    """How many times a size is moved, so that all sizes take about equally long."""
    return max(FEWEST, min(MOST, ABOUT_BYTES // num_bytes))


def at_once(num_bytes: int) -> int:
    """How many hand-overs of a size are under way at once; one for the largest sizes."""
    return max(1, min(MOST_AT_ONCE, BYTES_AT_ONCE // num_bytes))
