"""What a decode step costs the host beside what it launches: calls, which no clock disturbs."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from torch import Tensor

from engine.kernels.sampling import SamplingKernels
from engine.request import Request, RequestId, Sampling
from engine.running.recorder import Cut, Recorder, Replay
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.device import FakeAccelerator, on_device
from tests.fakes.driver import prompt
from tests.unit.test_policies import calls_of

PLAIN = Sampling(max_tokens=60, temperature=0.9, top_p=0.95, seed=3, ignore_eos=True)
KINDS = {
    "plain": PLAIN,
    "penalised": replace(PLAIN, presence_penalty=0.3),
    "biased": replace(PLAIN, logit_bias=((5, 2.0),)),
}
MOST_CALLS = {"plain": (200, 60), "penalised": (270, 86), "biased": (300, 77)}
"""In a step, and for each of its rows beside."""
STEPS = 10


class Idle(FakeAccelerator):
    """Whatever is launched does nothing, so all that is called is the host's work."""

    def __init__(self) -> None:
        super().__init__()
        self.drawing = SamplingKernels(_choose, _nothing, _nothing, _nothing)

    def recorder(self) -> Recorder:
        return _Blank()


class _Blank:
    def record(self, work: Callable[[], None]) -> Replay:
        work()
        return _nothing

    def record_pieces(self, work: Callable[[Cut], None]) -> list[Replay]:
        pieces: list[Replay] = [_nothing]
        work(lambda _: pieces.append(_nothing))
        return pieces

    def lend(self, tensor: Tensor) -> Tensor:
        return tensor


def _nothing(*_: object, **__: object) -> None:
    return


def _choose(*_: Tensor, out: Tensor, alive: Tensor | None = None, **__: object) -> Tensor:
    if alive is not None:
        alive.fill_(1)
    return out


def calls_of_a_step(folder: Path, sampling: Sampling, rows: int) -> float:
    engine = on_device(folder, Idle(), max_num_seqs=rows, max_num_batched_tokens=512)
    for row in range(rows):
        engine.generate(Request(RequestId(str(row)), prompt(5 + row % 7), sampling))

    def steps() -> None:
        for _ in range(STEPS):
            engine.schedule()
            engine.step()

    steps()
    return calls_of(steps) / STEPS


@pytest.mark.parametrize("kind", KINDS)
def test_a_steps_calls_are_few(tmp_path: Path, kind: str) -> None:
    folder = make_checkpoint(tmp_path)
    few, many = (calls_of_a_step(folder, KINDS[kind], rows) for rows in (8, 64))
    each = (many - few) / 56
    most, most_each = MOST_CALLS[kind]
    assert few - 8 * each <= most
    assert each <= most_each


def test_the_bench_of_launches_measures_both_ways() -> None:
    command = [sys.executable, "-m", "bench.launches", "--layers", "2", "--steps", "3"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert ran.returncode == 0, ran.stderr
    times = re.findall(r"2 layers: ([\d.]+) ms kernel by kernel, ([\d.]+) ms in", ran.stdout)
    assert len(times) == 3
    assert all(float(time) > 0 for turn in times for time in turn)
