"""Measures time on a device by its events, with cold caches for each run.

A run is queued behind a pause of the device, which is long enough for the host to launch the
whole run: so the device's time is measured, and not the host's launches. Before each run, more
is written than the L2 cache holds.

Steps are measured twice: one after the other, as in serving, between events at their ends; and
each behind a pause, so that the device never waits for the host. The second is the time in
which the device works, and the difference to the first is the host's.
"""

import statistics
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import torch

from bench.gpu.profiling import Kernels, kernels_of
from bench.gpu.row import Run

FLUSH_BYTES = 256 << 20
PAUSE_S = 0.0005
CYCLES = 2.0e9  # per second, at most: on a slower device a pause is longer
LONGEST_PAUSE_S = 0.1  # more than the host needs to launch any step
LEAST_RUNS, MOST_RUNS, ABOUT_S = 5, 200, 0.3
MOST_STEPS, STEPS_S = 100, 0.6
WARM_RUNS, PAUSED_RUNS = 3, 5
MS = 1e3


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Medians, in seconds, of calls one after the other.

    `seconds` are between events of the device, `clock_s` by the host's clock, and `busy_s` is
    the device's work in one call; None: it cannot be separated from the host's.
    """

    seconds: float
    clock_s: float
    busy_s: float | None = None


class Timer(Protocol):
    """A timer for one device."""

    def seconds(self, run: Run) -> float:
        """The median of some warm runs."""

    def host_seconds(self, run: Run) -> float:
        """The host's time for one call, without the device's."""

    def clock_seconds(self, run: Run) -> float:
        """The median of calls that wait for their result, one after the other."""

    def step_times(self, run: Run) -> StepTimes:
        """Times of calls that end with a result on the host; more may be launched by then."""

    def kernels(self, run: Run) -> Kernels:
        """The kernels of a call; empty if they cannot be profiled."""


@dataclass(slots=True)
class EventTimer:
    """See Timer; for a CUDA device."""

    device: torch.device
    _flush: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        """Allocate the memory with which caches are flushed."""
        self._flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=self.device)

    def seconds(self, run: Run) -> float:
        """See Timer."""
        for _ in range(WARM_RUNS):
            run()
        torch.cuda.synchronize(self.device)
        first = self._medians(run, LEAST_RUNS)
        return self._medians(run, runs_for(first)) if first < ABOUT_S else first

    def host_seconds(self, run: Run) -> float:
        """See Timer. Makes no more calls at once than a stream can queue."""
        times = list[float]()
        for _ in range(LEAST_RUNS):
            torch.cuda.synchronize(self.device)
            times.append(_clocked(run))
        torch.cuda.synchronize(self.device)
        return statistics.median(times)

    def clock_seconds(self, run: Run) -> float:
        """See Timer."""
        for _ in range(WARM_RUNS):
            run()
        first = _clocked(run)
        runs = LEAST_RUNS if first > ABOUT_S else runs_for(first)
        return statistics.median(_clocked(run) for _ in range(runs))

    def step_times(self, run: Run) -> StepTimes:
        """See Timer."""
        for _ in range(WARM_RUNS):
            run()
        first, clocks = _clocked(run), list[float]()
        begin, *ends = [_event() for _ in range(steps_for(first) + 1)]
        begin.record()
        for end in ends:
            clocks.append(_clocked(run))
            end.record()
        torch.cuda.synchronize(self.device)
        marks = pairwise([begin, *ends])
        seconds = statistics.median(one.elapsed_time(other) for one, other in marks) / MS
        clock_s = statistics.median(clocks)
        return StepTimes(seconds, clock_s, self._busy(run, min(clock_s, LONGEST_PAUSE_S)))

    def kernels(self, run: Run) -> Kernels:
        """See Timer."""
        return kernels_of(run, self.device)

    def _busy(self, run: Run, pause_s: float) -> float:
        """The time of calls that are each behind a pause in which the host launches it."""
        times = list[float]()
        for _ in range(PAUSED_RUNS):
            begin, end = _event(), _event()
            torch.cuda.synchronize(self.device)
            torch.cuda._sleep(round(CYCLES * pause_s))
            begin.record()
            run()
            end.record()
            torch.cuda.synchronize(self.device)
            times.append(begin.elapsed_time(end))
        return statistics.median(times) / MS

    def _medians(self, run: Run, runs: int) -> float:
        marks = [(_event(), _event()) for _ in range(runs)]
        for begin, end in marks:
            self._flush.zero_()
            torch.cuda._sleep(round(CYCLES * PAUSE_S))
            begin.record()
            run()
            end.record()
        torch.cuda.synchronize(self.device)
        times: list[float] = [begin.elapsed_time(end) for begin, end in marks]
        return statistics.median(times) / MS


@dataclass(slots=True)
class ClockTimer:
    """See Timer; for a CPU, where the benchmark can be tested but numbers are meaningless."""

    runs: int = 1

    def seconds(self, run: Run) -> float:
        """See Timer."""
        return statistics.median(_clocked(run) for _ in range(self.runs))

    def host_seconds(self, run: Run) -> float:
        """See Timer: all of it is the host's."""
        return self.seconds(run)

    def clock_seconds(self, run: Run) -> float:
        """See Timer: the same."""
        return self.seconds(run)

    def step_times(self, run: Run) -> StepTimes:
        """See Timer: there is no device."""
        took = self.seconds(run)
        return StepTimes(took, took)

    def kernels(self, run: Run) -> Kernels:
        """See Timer: empty, as Triton's interpreter runs very many operations."""
        return {}


def timer_of(device: torch.device) -> Timer:
    """The timer for a device."""
    return EventTimer(device) if device.type == "cuda" else ClockTimer()


def runs_for(one_s: float) -> int:
    """How many runs take ABOUT_S, within bounds."""
    return max(LEAST_RUNS, min(MOST_RUNS, round(ABOUT_S / max(one_s, 1e-9))))


def steps_for(one_s: float) -> int:
    """How many steps take STEPS_S, within bounds: a sequence has room for few tokens."""
    return max(LEAST_RUNS, min(MOST_STEPS, round(STEPS_S / max(one_s, 1e-9))))


def _clocked(run: Run) -> float:
    since = time.perf_counter()
    run()
    return time.perf_counter() - since


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)
