"""How long something takes on a device: by its events, each run with cold caches.

A run's start is queued behind a pause of the device, long enough for the host to have queued
the run as well: so what is measured is the device's time, and not the host's that launches.
Before each run more is written than the second-level cache holds.
"""

import statistics
import time
from dataclasses import dataclass, field
from typing import Protocol

import torch

from bench.gpu.row import Run

FLUSH_BYTES = 256 << 20
PAUSE_CYCLES = 1_000_000  # half a millisecond
LEAST_RUNS, MOST_RUNS, ABOUT_S = 5, 200, 0.3
WARM_RUNS, PROFILED_RUNS = 3, 5
MS, US = 1e3, 1e6


class Timer(Protocol):
    """Of one device."""

    def seconds(self, run: Run) -> float:
        """The median of some warm runs."""

    def host_seconds(self, run: Run) -> float:
        """What the host spends on a call of it, the device's time left out."""

    def clock_seconds(self, run: Run) -> float:
        """The median of calls that wait for their result, one behind the other."""

    def busy_seconds(self, run: Run) -> float | None:
        """What the device works in a call of it; None: it cannot be told from the host's."""


@dataclass(slots=True)
class EventTimer:
    """On a CUDA device."""

    device: torch.device
    _flush: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        """What caches are flushed with."""
        self._flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=self.device)

    def seconds(self, run: Run) -> float:
        """See Timer."""
        for _ in range(WARM_RUNS):
            run()
        torch.cuda.synchronize(self.device)
        first = self._medians(run, LEAST_RUNS)
        return self._medians(run, runs_for(first)) if first < ABOUT_S else first

    def host_seconds(self, run: Run) -> float:
        """See Timer. No more calls at once than a stream can queue."""
        times = list[float]()
        for _ in range(LEAST_RUNS):
            torch.cuda.synchronize(self.device)
            since = time.perf_counter()
            run()
            times.append(time.perf_counter() - since)
        torch.cuda.synchronize(self.device)
        return statistics.median(times)

    def clock_seconds(self, run: Run) -> float:
        """See Timer."""
        for _ in range(WARM_RUNS):
            run()
        first = _clocked(run)
        runs = LEAST_RUNS if first > ABOUT_S else runs_for(first)
        return statistics.median(_clocked(run) for _ in range(runs))

    def busy_seconds(self, run: Run) -> float | None:
        """By the profiler: all kernels and copies of some calls, which follow one another."""
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            for _ in range(PROFILED_RUNS):
                run()
            torch.cuda.synchronize(self.device)
        total = sum(one.self_device_time_total for one in seen.key_averages())
        return float(total) / US / PROFILED_RUNS if total else None

    def _medians(self, run: Run, runs: int) -> float:
        marks = [_pair() for _ in range(runs)]
        for begin, end in marks:
            self._flush.zero_()
            torch.cuda._sleep(PAUSE_CYCLES)
            begin.record()
            run()
            end.record()
        torch.cuda.synchronize(self.device)
        times: list[float] = [begin.elapsed_time(end) for begin, end in marks]
        return statistics.median(times) / MS


@dataclass(slots=True)
class ClockTimer:
    """On the CPU, where a bench can be tried out and its numbers say nothing."""

    runs: int = 1

    def seconds(self, run: Run) -> float:
        """See Timer."""
        return statistics.median(_clocked(run) for _ in range(self.runs))

    def host_seconds(self, run: Run) -> float:
        """All of it is the host's."""
        return self.seconds(run)

    def clock_seconds(self, run: Run) -> float:
        """The same."""
        return self.seconds(run)

    def busy_seconds(self, run: Run) -> float | None:
        """There is no device."""
        run()
        return None


def timer_of(device: torch.device) -> Timer:
    """By events where there are such."""
    return EventTimer(device) if device.type == "cuda" else ClockTimer()


def runs_for(one_s: float) -> int:
    """As many as take ABOUT_S, within bounds."""
    return max(LEAST_RUNS, min(MOST_RUNS, round(ABOUT_S / max(one_s, 1e-9))))


def _clocked(run: Run) -> float:
    since = time.perf_counter()
    run()
    return time.perf_counter() - since


def _pair() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
