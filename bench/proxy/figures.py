"""CPU cost of one request and of one token, from what was counted. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.load import percentile
from bench.proxy.answers import LoadResult

MICRO, MILLI = 1e6, 1e3
MOST_TOKEN_S, MOST_REQUEST_S, MOST_ADDED_S = 60e-6, 500e-6, 2e-3


@dataclass(frozen=True, slots=True)
class WindowWork:
    """What one process has done in a window, and the seconds it computed for it."""

    requests: float
    tokens: int
    cpu_s: float

    @classmethod
    def of(cls, done: LoadResult, pid: int, *, by_event: bool = False) -> "WindowWork":
        """A request that was cut by an end of the window counts half."""
        tokens = done.events if by_event else done.tokens
        return cls((done.started + done.ended) / 2, tokens, done.cpu_s[str(pid)])


@dataclass(frozen=True, slots=True)
class CpuCosts:
    """Seconds of CPU."""

    request_s: float
    token_s: float

    @classmethod
    def of(cls, short: WindowWork, long: WindowWork) -> "CpuCosts":
        """Two windows with answers of two lengths are two equations."""
        area = short.requests * long.tokens - long.requests * short.tokens
        request = (short.cpu_s * long.tokens - long.cpu_s * short.tokens) / area
        token = (short.requests * long.cpu_s - long.requests * short.cpu_s) / area
        return cls(request, token)

    @classmethod
    def median(cls, costs: "Sequence[CpuCosts]") -> "CpuCosts":
        """Of each by itself."""
        return cls(
            statistics.median(one.request_s for one in costs),
            statistics.median(one.token_s for one in costs),
        )

    def __str__(self) -> str:
        return (
            f"{self.token_s * MICRO:6.1f} us for each token, "
            f"{self.request_s * MICRO:6.0f} us for each request"
        )


@dataclass(frozen=True, slots=True)
class FirstTokenTimes:
    """Time to first token, in seconds."""

    p50: float
    p99: float

    @classmethod
    def of(cls, done: Sequence[LoadResult]) -> "FirstTokenTimes":
        """Of all windows together."""
        times = [first for one in done for first in one.firsts]
        return cls(percentile(times, 0.5), percentile(times, 0.99))

    def beyond(self, other: "FirstTokenTimes") -> "FirstTokenTimes":
        """What it adds to another."""
        return FirstTokenTimes(self.p50 - other.p50, self.p99 - other.p99)

    def __str__(self) -> str:
        return f"p50 {self.p50 * MILLI:6.2f} ms, p99 {self.p99 * MILLI:6.2f} ms"


def verdict(what: str, took: float, most: float, scale: float, unit: str) -> str:
    """One line: what was asked for, and whether it was reached."""
    said = "reached" if took <= most else "not reached"
    return f"{what}: {took * scale:.2f} {unit}, at most {most * scale:g} asked for: {said}"
