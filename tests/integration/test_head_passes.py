"""What the passes of a draft head compute: no logits in vain, and nothing is left running."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace
from torch import Tensor

from engine.attention.plan import Plan
from engine.request import PoolingRequest, RequestId, Sampling
from engine.running.head_runner import HeadRunner, merged
from engine.running.runner import ForwardOutput
from engine.stepping.head_drafter import HeadDrafter, RanChunk
from engine.torch_engine import TorchEngine
from tests.fakes.draft_heads import headed, make_head_checkpoint
from tests.fakes.driver import drain, load, prompt, requests, run

GREEDY = Sampling(max_tokens=8, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its head is always right."""
    return make_head_checkpoint(tmp_path_factory.mktemp("right"), right=True)


class Watched:
    """A runner that notes how many tokens each pass has, and how many logits are asked for."""

    def __init__(self, runner: HeadRunner) -> None:
        self.runner, self.passes = runner, list[tuple[int, int]]()
        self.draws = runner.draws

    def run(self, plan: Plan, rows: Sequence[range], hidden: Tensor | None) -> ForwardOutput:
        self.passes.append((len(plan.tokens), len(plan.picks)))
        return self.runner.run(plan, rows, hidden)


def drafter_of(engine: TorchEngine) -> HeadDrafter:
    assert isinstance(engine.scheduler.drafter, HeadDrafter)
    return engine.scheduler.drafter


def watched(engine: TorchEngine) -> list[tuple[int, int]]:
    drafter = drafter_of(engine)
    drafter.runner = watching = Watched(drafter.runner)
    return watching.passes


def test_each_token_is_read_once_and_each_draft_made_by_one_pass(right: Path) -> None:
    """Behind the prompt: one token, two with one draft, three with two, and the last two."""
    engine = load(right, max_num_batched_tokens=32, **headed(2))
    passes = watched(engine)
    run(engine, requests([prompt(40)], GREEDY))
    second_draft = (1, 1)
    assert passes == [(32, 0), (8, 1), (2, 1), second_draft, (3, 1), (2, 0)]


@pytest.mark.parametrize(
    "ends",
    [{"max_tokens": 1}, {"max_tokens": 2}, {"ignore_eos": False, "stop_token_ids": (0,)}],
)
def test_no_draft_is_made_ready_behind_an_end(right: Path, ends: dict[str, Any]) -> None:
    plain = run(load(right), requests([prompt(40)], GREEDY))[0]
    if "stop_token_ids" in ends:
        ends = {**ends, "stop_token_ids": plain[:1]}
    engine = load(right, **headed())
    passes = watched(engine)
    run(engine, requests([prompt(40)], replace(GREEDY, **ends)))
    assert [picks for _, picks in passes] == [0] * len(passes)
    assert passes[0] == (40, 0)


def test_no_draft_is_made_ready_where_none_is_asked_for(right: Path) -> None:
    engine = load(right, **headed())
    passes = watched(engine)
    engine.prefill(requests([prompt(40)], GREEDY)[0])
    engine.embed(PoolingRequest(RequestId("pooled"), prompt(41)))
    engine.schedule()
    drain(engine)
    assert passes == [(80, 0)], "nothing is known behind the last token of what is pooled"


@pytest.mark.parametrize(("most", "picks"), [(1, {0}), (2, {0, 2})])
def test_no_logits_are_made_for_a_batch_of_many(
    right: Path, most: int, picks: set[int]
) -> None:
    engine = load(right, **headed(1, disable_by_batch_size=most))
    passes = watched(engine)
    run(engine, requests([prompt(40), prompt(40, 1)], GREEDY))
    assert {wanted for _, wanted in passes} == picks


class Unfinished:
    """Hidden states that a device is still computing."""

    waited = False

    def __getitem__(self, _place: object) -> "Unfinished":
        return self

    def item(self) -> None:
        self.waited = True


class Endless:
    """A runner of passes that end when somebody waits."""

    draws = False

    def __init__(self) -> None:
        self.hidden = Unfinished()

    def run(self, plan: Plan, rows: Sequence[range], hidden: Tensor | None) -> ForwardOutput:
        return ForwardOutput(cast("Tensor", self.hidden), None)


def test_a_pass_behind_a_step_has_ended_when_the_step_has(right: Path) -> None:
    """Other nodes read the blocks that it writes to."""
    engine = load(right, **headed())
    drafter_of(engine).runner = endless = Endless()
    engine.prefill(requests([prompt(40)], GREEDY)[0])
    engine.schedule()
    engine.step()
    assert endless.hidden.waited


def test_a_step_without_a_known_next_token_forgets_the_last(right: Path) -> None:
    engine = load(right, **headed())
    (asked,) = requests([prompt(40)], GREEDY)
    engine.generate(asked)
    engine.schedule()
    engine.step()
    seq, drafter = engine.scheduler.find(asked.request_id), drafter_of(engine)
    assert drafter.wanted(seq, 3) == 1
    drafter.follow(list[RanChunk](), cast("Tensor", None))
    assert drafter.wanted(seq, 3) == 0


def test_rows_that_follow_each_other_are_copied_at_once() -> None:
    parts = [range(3, 4), range(4, 7), range(8, 9), range(9, 10), range(2, 3)]
    assert merged(parts) == [range(3, 7), range(8, 10), range(2, 3)]
    assert merged([]) == []
