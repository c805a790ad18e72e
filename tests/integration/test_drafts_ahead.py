"""While drafts pause, a device's steps are launched ahead, with a draft head behind each.

A head that knows nothing drafts from all that it has read, as in test_draft_head.py. The fake
device notes what was begun and read: the tokens of a step, and the mark behind a head's pass.
"""

from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.request import Grammar, Request, Sampling
from engine.scheduling.drafting import Pace
from engine.stepping.ahead import AheadStepper
from engine.torch_engine import TorchEngine
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.device import DEVICE, FakeAccelerator, on_device
from tests.fakes.draft_heads import Compared, Reference, headed, make_head_checkpoint
from tests.fakes.drafter import drafted_by
from tests.fakes.driver import load, prompt, requests, run
from tests.fakes.eagle_heads import EagleReference, eagled, make_eagle
from tests.fakes.ranks import ranked

GREEDY = Sampling(max_tokens=24, temperature=0, ignore_eos=True)
GRAMMAR = Grammar("regex", "[a-z0-9 ]{60,90}")
PROMPTS = [prompt(length) for length in (1, 7, 16, 17, 40, 64)]
FEW = {"disable_by_batch_size": 2}


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many drafts as there may be, whatever became of the last ones."""
    monkeypatch.setattr(Pace, "allowed", lambda pace, _seq, most: max(0, min(pace.most, most)))
    monkeypatch.setattr(Pace, "rests", lambda _pace, _seq: False)


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_head_checkpoint(tmp_path_factory.mktemp("strange"), "glm4_moe", experts=False)


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_head_checkpoint(tmp_path_factory.mktemp("right"), "glm4_moe", right=True)


def device_engine(made: Path, **settings: object) -> tuple[TorchEngine, FakeAccelerator]:
    accelerator = FakeAccelerator(draws=True)
    engine = on_device(made, accelerator, **settings)
    accelerator.begin_anew()
    return engine, accelerator


def of_unlike_lengths(sampling: Sampling = GREEDY) -> list[Request]:
    """The last two have many tokens to come when the others have said theirs."""
    lengths = 9, 12, 11, 10, 34, 30
    return [
        replace(one, sampling=replace(sampling, max_tokens=length))
        for one, length in zip(requests(PROMPTS), lengths, strict=True)
    ]


def steps_of(engine: TorchEngine, asked: list[Request]) -> tuple[list[int], list[int]]:
    """Which steps were launched ahead, and which had drafts; none is both."""
    ahead, drafting, step = list[int](), list[int](), 0
    for one in asked:
        engine.generate(one)
    while engine.load.waiting or engine.load.running:
        engine.schedule()
        drafts = any(chunk.drafts for chunk in engine.scheduler.batch)
        launched = isinstance(engine.stepper, AheadStepper) and engine.stepper.launched
        assert not (launched and drafts)
        ahead += [step] if launched else []
        drafting += [step] if drafts else []
        engine.step()
        step += 1
    return ahead, drafting


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("is_eager", [False, True])
def test_drafts_behind_steps_ahead_are_those_of_the_modules(
    strange: Path, *, is_eager: bool
) -> None:
    engine, _ = device_engine(strange, enforce_eager=is_eager, **headed(**FEW))
    judge = Compared.watch(engine, Reference.of(strange))
    assert run(engine, of_unlike_lengths()) == run(load(strange), of_unlike_lengths())
    assert judge.drafts > 10


@pytest.mark.usefixtures("restless")
def test_so_are_those_of_an_eagle_head(tmp_path: Path) -> None:
    made = make_checkpoint(tmp_path / "model", num_hidden_layers=6)
    head = make_eagle(tmp_path / "head", words=96)
    engine, _ = device_engine(made, **eagled(head, **FEW))
    judge = Compared.watch(engine, EagleReference.of(made, head))
    assert run(engine, of_unlike_lengths()) == run(load(made), of_unlike_lengths())
    assert judge.drafts > 10


@pytest.mark.usefixtures("restless")
def test_ranks_know_what_was_drawn(strange: Path) -> None:
    accelerators = [FakeAccelerator(draws=True) for _ in range(2)]
    with ranked(strange, 2, accelerators, **DEVICE, **headed(**FEW)) as engine:
        judge = Compared.watch(engine, Reference.of(strange))
        assert run(engine, of_unlike_lengths()) == run(load(strange), of_unlike_lengths())
        assert judge.drafts > 10


@pytest.mark.parametrize(
    "shape",
    [
        {"temperature": 0.9, "top_k": 60, "seed": 3},
        {"repetition_penalty": 1.3, "logprobs": 2},
        {"grammar": GRAMMAR, "temperature": 0.8, "seed": 4},
    ],
    ids=["seeded", "penalised", "a draw that waits for the host"],
)
def test_drafts_are_right_behind_any_draw(right: Path, shape: dict[str, object]) -> None:
    sampling = replace(GREEDY, **shape)
    expected = run(load(right), of_unlike_lengths(sampling))
    engine, _ = device_engine(right, **headed(**FEW))
    assert run(engine, of_unlike_lengths(sampling)) == expected
    assert engine.load.accepted_tokens == engine.load.draft_tokens > 0


NGRAMS = {"speculative_config": '{"num_speculative_tokens": 4, "disable_by_batch_size": 2}'}


@pytest.mark.parametrize("kind", ["head", "model", "ngrams"])
def test_steps_of_many_are_launched_ahead_and_those_of_few_draft(
    right: Path, llama: Path, kind: str
) -> None:
    """And none is launched in vain when the many become few."""
    made = right if kind == "head" else llama
    settings = {"head": headed(**FEW), "model": drafted_by(llama, **FEW), "ngrams": NGRAMS}
    engine, accelerator = device_engine(made, **settings[kind])
    ahead, drafting = steps_of(engine, of_unlike_lengths())
    assert len(ahead) >= 8
    assert drafting or kind == "ngrams"
    tokens = [word for word in accelerator.told if word.startswith("begin")]
    begun = {word.removeprefix("begin") for word in tokens}
    read = {word.removeprefix("read") for word in accelerator.told if word.startswith("read")}
    assert begun == read


def test_a_sequence_that_drafts_badly_is_launched_ahead_while_it_rests(strange: Path) -> None:
    """It drafts again as soon as it would elsewhere: after 4, 8 and 16 tokens."""
    engine, _ = device_engine(strange, **headed(1))
    long = requests(PROMPTS[4:5], replace(GREEDY, max_tokens=60))
    ahead, drafting = steps_of(engine, long)
    assert drafting == steps_of(load(strange, **headed(1)), long)[1] == [1, 2, 7, 16, 33]
    assert len(ahead) == 50
    assert run(engine, long) == run(load(strange), long)


def test_nobody_waits_while_another_drafts(strange: Path) -> None:
    """Of two sequences one rests, and the other drafts on, as they do elsewhere."""
    long = requests(PROMPTS[4:], replace(GREEDY, max_tokens=40))
    engine, _ = device_engine(strange, **headed(1))
    drafting = steps_of(engine, long)[1]
    plain = load(strange, max_num_batched_tokens=DEVICE["max_num_batched_tokens"], **headed(1))
    assert drafting == steps_of(plain, long)[1]
    assert len(drafting) > 6


def test_a_step_ends_when_the_heads_pass_behind_it_has(strange: Path) -> None:
    """Whether the next step has or not: other nodes may read the blocks that it filled. A pass
    is not replayed as a whole graph, which would make logits that nobody asks for.
    """
    engine, accelerator = device_engine(strange, **headed(**FEW))
    stepper = engine.stepper
    assert isinstance(stepper, AheadStepper)
    for one in of_unlike_lengths():
        engine.generate(one)
    while stepper.launched is None:
        engine.schedule()
        engine.step()
    first = accelerator.begun
    accelerator.told.clear()
    accelerator.order.clear()
    for _ in range(3):
        engine.schedule()
        engine.step()
    assert accelerator.told == [
        word
        for mark in range(first, first + 6, 2)
        for word in (f"begin {mark}", f"begin {mark + 1}", f"read {mark - 1}", f"read {mark}")
    ]
    assert accelerator.order.count("replay") == 3
