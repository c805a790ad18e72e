"""When an answer ends, what may not be in it, and what is refused at the door."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from engine.api import Sampled
from engine.errors import EmptyPrompt, RequestTooLong, UnknownToken, UnusableSampling
from engine.request import FinishReason, Request, RequestId, Sampling
from engine.torch_engine import TorchEngine
from tests.fakes.checkpoints import VOCABULARY, edit_config, make_checkpoint
from tests.fakes.driver import assert_idle, load, prompt, run

LONGEST = 64
ABSENT = 100_000
GREEDY = Sampling(max_tokens=20, temperature=0, ignore_eos=True)
ASKED = Request(RequestId("asked"), prompt(9), GREEDY)
hand_in = pytest.mark.parametrize(
    "hand_in", [TorchEngine.generate, TorchEngine.prefill, TorchEngine.reserve]
)


@pytest.fixture(scope="module")
def engine(llama: Path) -> TorchEngine:
    return load(llama, max_model_len=LONGEST)


@pytest.fixture(scope="module")
def usual(engine: TorchEngine) -> list[int]:
    """What it says when nothing ends it."""
    return run(engine, [ASKED])[0]


def ask(engine: TorchEngine, **sampling: object) -> list[Sampled]:
    """The whole answer, with its end."""
    engine.generate(replace(ASKED, sampling=replace(GREEDY, **sampling)))
    said = list[Sampled]()
    while engine.load.waiting or engine.load.running:
        engine.schedule()
        said += engine.step().sampled
    assert_idle(engine)
    return said


def tokens(said: list[Sampled]) -> list[int]:
    return [token for one in said for token in one.tokens]


def test_an_answer_ends_at_its_length(engine: TorchEngine, usual: list[int]) -> None:
    said = ask(engine, max_tokens=7)
    assert tokens(said) == usual[:7]
    assert [one.finish for one in said] == [None] * 6 + [FinishReason.LENGTH]


def test_a_stop_token_ends_it_and_is_told(engine: TorchEngine, usual: list[int]) -> None:
    said = ask(engine, stop_token_ids=(usual[4], ABSENT))
    assert tokens(said) == usual[: usual.index(usual[4]) + 1]
    assert (said[-1].finish, said[-1].stop_reason) == (FinishReason.STOP, usual[4])


@pytest.mark.parametrize("ends", [lambda token: token, lambda token: [ABSENT, token]])
def test_the_end_token_of_the_model_ends_it(
    usual: list[int], ends: Callable[[int], object], tmp_path: Path
) -> None:
    make_checkpoint(tmp_path, "llama")
    (tmp_path / "generation_config.json").unlink()
    edit_config(tmp_path, {"eos_token_id": ends(usual[4])})
    engine = load(tmp_path)
    said = ask(engine, ignore_eos=False)
    assert tokens(said) == usual[: usual.index(usual[4]) + 1]
    assert (said[-1].finish, said[-1].stop_reason) == (FinishReason.STOP, None)
    assert tokens(ask(engine, ignore_eos=True)) == usual
    late = tokens(ask(engine, ignore_eos=False, min_tokens=12))
    assert len(late) > 12
    assert usual[4] not in late[:12]


def test_nothing_ends_it_before_min_tokens(engine: TorchEngine, usual: list[int]) -> None:
    first = usual.index(usual[4])
    said = tokens(ask(engine, stop_token_ids=(usual[4], ABSENT), min_tokens=first + 1))
    assert said[:first] == usual[:first]
    assert said[first] != usual[4]
    exactly = tokens(ask(engine, stop_token_ids=(usual[4],), min_tokens=first))
    assert exactly == usual[: first + 1]


@hand_in
@pytest.mark.parametrize("odd", [VOCABULARY, -1, 2**40])
def test_what_is_no_token_is_refused(
    engine: TorchEngine, hand_in: Callable[..., object], odd: int
) -> None:
    with pytest.raises(UnknownToken, match=rf"\[{odd}\] not in") as refusal:
        hand_in(engine, replace(ASKED, prompt=(1, odd, 2)))
    assert refusal.value.param == "token_ids"
    with pytest.raises(UnknownToken, match=rf"\[{odd}\] not in"):
        hand_in(engine, replace(ASKED, generated=(odd, odd)))
    assert_idle(engine)


@hand_in
@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"logit_bias": ((VOCABULARY, 1.0),)}, UnknownToken),
        ({"allowed_token_ids": (1, VOCABULARY)}, UnknownToken),
        ({"bad_words": ((1, 2), (1, VOCABULARY))}, UnknownToken),
        ({"bad_words": ((1, 2), ())}, UnusableSampling),
        ({"bad_words": tuple((token,) for token in range(VOCABULARY))}, UnusableSampling),
        ({"allowed_token_ids": ()}, UnusableSampling),
        ({"allowed_token_ids": (1, 2), "bad_words": ((1,), (2,))}, UnusableSampling),
        (
            {"allowed_token_ids": (7,), "stop_token_ids": (7,), "min_tokens": 1},
            UnusableSampling,
        ),
    ],
)
def test_sampling_that_cannot_be_is_refused_and_named(
    engine: TorchEngine, hand_in: Callable[..., object], asked: dict[str, Any], error: type
) -> None:
    with pytest.raises(error, match=next(iter(asked))):
        hand_in(engine, replace(ASKED, sampling=replace(GREEDY, **asked)))
    assert_idle(engine)


def test_ends_may_be_all_there_is_once_they_may_come(engine: TorchEngine) -> None:
    ends = {"allowed_token_ids": (7,), "stop_token_ids": (7,), "min_tokens": 1}
    retried = replace(ASKED, generated=(3,), sampling=replace(GREEDY, **ends))
    assert run(engine, [retried]) == [[7]]


@hand_in
def test_an_empty_prompt_is_refused(
    engine: TorchEngine, hand_in: Callable[..., object]
) -> None:
    with pytest.raises(EmptyPrompt, match="asked"):
        hand_in(engine, replace(ASKED, prompt=()))
    assert_idle(engine)


@hand_in
def test_what_is_too_long_is_refused(
    engine: TorchEngine, hand_in: Callable[..., object]
) -> None:
    with pytest.raises(RequestTooLong, match=str(LONGEST)):
        hand_in(engine, replace(ASKED, prompt=prompt(LONGEST + 1)))
    assert_idle(engine)


def test_the_answer_counts_where_it_is_made(engine: TorchEngine) -> None:
    """A prompt that parks needs no room for it."""
    request = replace(ASKED, prompt=prompt(LONGEST - 19))
    with pytest.raises(RequestTooLong):
        engine.generate(request)
    with pytest.raises(RequestTooLong):
        engine.reserve(request)
    engine.prefill(request)
    engine.release(request.request_id)
    assert_idle(engine)


def test_the_longest_that_fits_is_answered(engine: TorchEngine) -> None:
    (answer,) = run(engine, [replace(ASKED, prompt=prompt(LONGEST - 20))])
    assert len(answer) == 20
