"""Steps on a device, timed between its events, behind a device and a clock that are made up."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from bench.gpu.timing import CYCLES, MOST_STEPS, EventTimer, steps_for

LAUNCH, WORK = 0.001, 0.008


@dataclass
class Stage:
    """One stream of a device: `host` and `device` are until when each is busy."""

    host: float = 0.0
    device: float = 0.0
    calls: int = 0

    def launch(self, launch: float, work: float) -> float:
        """Tell it some work; when that will be done."""
        self.host += launch
        self.device = max(self.host, self.device) + work
        return self.device

    def wait(self, *_: object) -> None:
        self.host = max(self.host, self.device)

    def sleep(self, cycles: int) -> None:
        self.launch(0.0, cycles / CYCLES)


@dataclass
class Mark:
    stage: Stage
    at: float = 0.0

    def record(self) -> None:
        self.at = max(self.stage.host, self.stage.device)

    def elapsed_time(self, end: "Mark") -> float:
        return 1e3 * (end.at - self.at)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    made = Stage()
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: Mark(made))
    monkeypatch.setattr(torch.cuda, "synchronize", made.wait)
    monkeypatch.setattr(torch.cuda, "_sleep", made.sleep)
    monkeypatch.setattr(time, "perf_counter", lambda: made.host)
    return made


def waiting(stage: Stage, launch: float) -> Callable[[], None]:
    """A step whose tokens are read when it is launched."""

    def step() -> None:
        stage.launch(launch, WORK)
        stage.wait()

    return step


def ahead(stage: Stage, launch: float) -> Callable[[], None]:
    """A step that is launched before the tokens of the one before are read."""
    done = [0.0]

    def step() -> None:
        before, done[0] = done[0], stage.launch(launch, WORK)
        stage.host = max(stage.host, before)

    return step


@pytest.mark.parametrize(
    ("kind", "launch", "seconds"),
    [
        (waiting, LAUNCH, WORK + LAUNCH),
        (ahead, LAUNCH, WORK),
        (ahead, 2 * WORK, 2 * WORK),
    ],
)
def test_what_the_device_does_not_work_of_a_step_is_the_hosts(
    kind: Callable[[Stage, float], Callable[[], None]],
    launch: float,
    seconds: float,
    stage: Stage,
) -> None:
    times = EventTimer(torch.device("cpu")).step_times(kind(stage, launch))
    assert times.seconds == pytest.approx(seconds)
    assert times.clock_s == pytest.approx(seconds)
    assert times.busy_s == pytest.approx(WORK)


def test_a_launch_is_no_part_of_a_kernels_time(stage: Stage) -> None:
    timer = EventTimer(torch.device("cpu"))
    assert timer.seconds(lambda: stage.launch(0.0002, 0.003)) == pytest.approx(0.003)
    assert timer.host_seconds(lambda: stage.launch(0.0002, 0.003)) == pytest.approx(0.0002)


def test_steps_find_room_behind_their_contexts() -> None:
    """Warm ones, one to see how long it takes, and those behind a pause are among them."""
    from bench.gpu.engines import ROOM
    from bench.gpu.timing import PAUSED_RUNS, WARM_RUNS

    assert MOST_STEPS + WARM_RUNS + 1 + PAUSED_RUNS < ROOM
    assert (steps_for(1e-6), steps_for(0.01), steps_for(9.0)) == (MOST_STEPS, 60, 5)
