"""Measures rows one by one; a row that fails is reported, and the others go on."""

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple
from zlib import crc32

import torch

from bench.gpu.ceilings import Ceilings
from bench.gpu.profiling import Kernels
from bench.gpu.row import Counted, Prepared, Row, Run
from bench.gpu.shapes import Shape
from bench.gpu.timing import Timer

NOTHING: Kernels = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Measured:
    """One row's result. Seconds are the device's; `host_s` is the host's time for one call.

    For a step, seconds are from one step's end to the next one's, on the device; `clock_s` is
    the same by the host's clock, `busy_s` the part in which the device works, and `host_s` the
    part in which it does not. For a row that waits for more than the device, all are by the
    host's clock. `error` is |ours - twin| / |twin|. `told` is the row's own report. `kernels`
    are those of a step (bench/gpu/profiling.py).
    """

    shape: str
    name: str
    setting: str
    seconds: float | None = None
    host_s: float | None = None
    clock_s: float | None = None
    busy_s: float | None = None
    floor_s: float | None = None
    floor_bytes: int | None = None
    floor_operations: int | None = None
    error: float | None = None
    rivals: dict[str, float | str] = field(default_factory=dict)
    told: str | None = None
    failed: str | None = None
    kernels: Kernels = field(default_factory=dict)

    @property
    def share(self) -> float | None:
        """The share of the ceiling that is reached: 1 is the fastest possible."""
        if self.seconds is None or self.floor_s is None:
            return None
        return self.floor_s / self.seconds


@dataclass(frozen=True, slots=True)
class Meter:
    """Runs rows on one device."""

    device: torch.device
    timer: Timer
    ceilings: Ceilings

    def measure(self, shape: Shape, row: Row) -> Measured:
        """Measure a row, with the inputs of every run; its errors are caught and reported."""
        named = shape.name, row.name, row.setting
        self._tidy()
        try:
            torch.manual_seed(crc32(" ".join(named).encode()))
            prepared = row.make(self.device)
            try:
                return self._measure(named, prepared)
            finally:
                prepared.close()  # impossible if the device is lost
        except Exception as error:  # noqa: BLE001  one row's failure is a result
            return Measured(*named, failed=told(error))

    def _measure(self, named: tuple[str, str, str], prepared: Prepared) -> Measured:
        floor, error = prepared.floor, None
        if prepared.twin is not None:
            error = difference(prepared.run(), prepared.twin())
        times = self._times(prepared)
        return Measured(
            *named,
            times.seconds,
            times.host_s,
            times.clock_s,
            times.busy_s,
            floor_s=times.floor_s or self.ceilings.seconds(floor),
            told=times.told,
            floor_bytes=floor.bytes,
            floor_operations=floor.operations,
            error=error,
            rivals=dict(self._rivals(prepared)),
            kernels=dict(times.kernels),
        )

    def device_is_lost(self) -> bool:
        """Whether a row has broken the device for this process, for example by a bad write."""
        if self.device.type != "cuda":
            return False
        try:
            torch.cuda.synchronize(self.device)
        except RuntimeError:
            return True
        return False

    def _times(self, prepared: Prepared) -> "_Times":
        run = prepared.run
        if prepared.measures:
            return _counted(run())
        if prepared.steps:
            return self._of_steps(run)
        if prepared.waits:
            return _Times(self.timer.clock_seconds(run))
        return _Times(self.timer.seconds(run), self.timer.host_seconds(run))

    def _of_steps(self, run: Run) -> "_Times":
        """Measure a step; profiles last, so that without a profiler there are still times."""
        times, why = self.timer.step_times(run), None
        try:
            kernels = self.timer.kernels(run)
        except RuntimeError as error:
            kernels, why = {}, f"no profile ({told(error)})"
        busy_s = times.busy_s
        host_s = None if busy_s is None else max(0.0, times.seconds - busy_s)
        return _Times(times.seconds, host_s, times.clock_s, busy_s, None, why, kernels)

    def _tidy(self) -> None:
        """Collect what earlier rows have left to the garbage collector."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _rivals(self, prepared: Prepared) -> Iterator[tuple[str, float | str]]:
        for name, make in prepared.rivals.items():
            try:
                run: Run = make()
                yield name, self.timer.seconds(run)
            except Exception as error:  # noqa: BLE001  the same for a rival
                yield name, told(error)


def _counted(took: object) -> "_Times":
    if isinstance(took, Counted):
        return _Times(took.seconds, floor_s=took.least_s, told=took.told)
    assert isinstance(took, float)
    return _Times(took)


class _Times(NamedTuple):
    """See Measured."""

    seconds: float
    host_s: float | None = None
    clock_s: float | None = None
    busy_s: float | None = None
    floor_s: float | None = None
    told: str | None = None
    kernels: Kernels = NOTHING


def told(error: Exception) -> str:
    """An error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:400]


def difference(ours: object, twin: object) -> float:
    """|ours - twin| / |twin| in float64, of the first of several; NaN if either has NaNs."""
    one, other = _first(ours).double(), _first(twin).double()
    return float((one.reshape(-1) - other.reshape(-1)).norm() / other.norm())


def _first(result: object) -> torch.Tensor:
    first = result[0] if isinstance(result, Sequence) else result
    assert isinstance(first, torch.Tensor), "a row with a twin gives tensors"
    return first
