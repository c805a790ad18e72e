"""One row after the other, each on its own: what fails is told by name, the rest goes on."""

import gc
import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType

import torch

from bench.gpu import rows as our_rows
from bench.gpu.ceilings import Ceilings
from bench.gpu.row import Prepared, Row, Run
from bench.gpu.shapes import Shape
from bench.gpu.timing import Timer


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds are of the device, `host_s` what one call takes the host.

    Of a row that waits for its result they are the clock's, and `host_s` is what of that the
    device did not work.

    `error` is how far the result is from the twin's, |ours - twin| / |twin|.
    """

    shape: str
    name: str
    setting: str
    seconds: float | None = None
    host_s: float | None = None
    floor_s: float | None = None
    floor_bytes: int | None = None
    floor_operations: int | None = None
    error: float | None = None
    rivals: dict[str, float | str] = field(default_factory=dict)
    failed: str | None = None

    @property
    def share(self) -> float | None:
        """Of the ceiling: 1 is as fast as can be."""
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
        """Whatever happens to it."""
        named = shape.name, row.name, row.setting
        self._tidy()
        try:
            prepared = row.make(self.device)
            try:
                return self._measure(named, prepared)
            finally:
                prepared.close()  # what it takes is gone with a device that is lost
        except Exception as error:  # noqa: BLE001  one row's failure is a result
            return Measured(*named, failed=told(error))

    def _measure(self, named: tuple[str, str, str], prepared: Prepared) -> Measured:
        floor, error = prepared.floor, None
        if prepared.twin is not None:
            error = difference(prepared.run(), prepared.twin())
        seconds, host_s = self._times(prepared)
        return Measured(
            *named,
            seconds=seconds,
            host_s=host_s,
            floor_s=self.ceilings.seconds(floor),
            floor_bytes=floor.bytes,
            floor_operations=floor.operations,
            error=error,
            rivals=dict(self._rivals(prepared)),
        )

    def device_is_lost(self) -> bool:
        """Whether something that ran has broken it for this process, as a stray write does."""
        if self.device.type != "cuda":
            return False
        try:
            torch.cuda.synchronize(self.device)
        except RuntimeError:
            return True
        return False

    def _times(self, prepared: Prepared) -> tuple[float, float | None]:
        if prepared.measures:
            took = prepared.run()
            assert isinstance(took, float)
            return took, None
        if not prepared.waits:
            run = prepared.run
            return self.timer.seconds(run), self.timer.host_seconds(run)
        seconds = self.timer.clock_seconds(prepared.run)
        busy = self.timer.busy_seconds(prepared.run)
        return seconds, None if busy is None else max(0.0, seconds - busy)

    def _tidy(self) -> None:
        """What rows before have left to the collector is in the way of this one."""
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


def find_rows(
    shape: Shape, only: Sequence[str], package: ModuleType = our_rows
) -> Iterator[Row | Measured]:
    """Of all modules of a package, those with one of `only` in their line; none: all."""
    for found in pkgutil.iter_modules(package.__path__):
        try:
            module = importlib.import_module(f"{package.__name__}.{found.name}")
            rows: list[Row] = list(module.rows(shape))
        except Exception as error:  # noqa: BLE001  the other modules' rows can be measured
            yield Measured(shape.name, found.name, "", failed=told(error))
            continue
        yield from (row for row in rows if wanted(str(row), only))


def wanted(line: str, only: Sequence[str]) -> bool:
    """Whether it has one of these words in it."""
    return not only or any(word in line for word in only)


def told(error: Exception) -> str:
    """In one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:400]


def difference(ours: object, twin: object) -> float:
    """|ours - twin| / |twin| in float64, of the first of several; NaN where either has one."""
    one, other = _first(ours).double(), _first(twin).double()
    return float((one.reshape(-1) - other.reshape(-1)).norm() / other.norm())


def _first(result: object) -> torch.Tensor:
    first = result[0] if isinstance(result, Sequence) else result
    assert isinstance(first, torch.Tensor), "a row with a twin gives tensors"
    return first
