"""What a decode step costs the host beside what it launches: calls, which no clock disturbs."""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from torch import Tensor

from engine.kernels.sampling import SamplingKernels
from engine.request import Request, RequestId, Sampling
from engine.running.graphs import Recorder
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
    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        work()
        return _nothing


def _nothing(*_: object, **__: object) -> None:
    return


def _choose(*_: Tensor, out: Tensor, alive: Tensor | None = None, **__: object) -> Tensor:
    if alive is not None:
        alive.fill_(1)
    return out


def calls_of_a_step(folder: Path, sampling: Sampling, rows: int) -> float:
    engine = on_device(folder, Idle(), max_num_seqs=rows)
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
