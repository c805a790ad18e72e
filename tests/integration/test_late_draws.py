"""Steps with masks, biases and grammars are begun ahead, and drawn once the host knows more."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import pytest
from msgspec.structs import replace
from tokenizers import Tokenizer
from torch import Tensor

from engine.kernels.gpu.sampling.adjusting import adjust, apply_bitmasks
from engine.kernels.gpu.sampling.choosing import choose
from engine.kernels.gpu.sampling.token_logprobs import gather_logprobs
from engine.kernels.sampling import SamplingKernels
from engine.request import FinishReason, Grammar, ReasoningMarks, Request, RequestId, Sampling
from engine.stepping.ahead import AheadStepper
from engine.torch_engine import TorchEngine
from tests.fakes.driver import assert_idle, eager, hand_over, load, prompt, requests, run
from tests.integration.test_ahead import ahead, told
from tests.integration.test_engine_grammars import GRAMMARS

PLAIN = Sampling(max_tokens=14, temperature=0.9, top_p=0.95, seed=3, ignore_eos=True)
PENALISED = replace(PLAIN, repetition_penalty=1.3, presence_penalty=0.2)
GRAMMAR = replace(PLAIN, ignore_eos=False, grammar=GRAMMARS["regex"])
BOUND = {
    **{kind: replace(GRAMMAR, grammar=one) for kind, one in GRAMMARS.items()},
    "masked": replace(PLAIN, allowed_token_ids=tuple(range(40, 60))),
    "biased": replace(PLAIN, logit_bias=((5, 6.0), (6, 5.0))),
    "bad words": replace(PLAIN, temperature=0, bad_words=((6, 9), (7,))),
    "held back": replace(PLAIN, ignore_eos=False, temperature=2, min_tokens=6),
    "all at once": replace(
        GRAMMAR, repetition_penalty=1.2, logit_bias=((5, 2.0),), bad_words=((102, 101),)
    ),
    "told of": replace(GRAMMAR, logprobs=3),
    "behind reasoning": replace(
        GRAMMAR, grammar_behind=ReasoningMarks(((1,),)), logit_bias=((1, 5.0),)
    ),
}
PROMPTS = [prompt(length) for length in (1, 5, 16, 17, 40, 64, 90)]


def asked(*samplings: Sampling) -> list[Request]:
    """Each kind of sampling over the next prompt, each with noise of its own."""
    return [
        Request(
            RequestId(str(at)),
            PROMPTS[at % len(PROMPTS)],
            replace(one, seed=at, sample_index=at % 3, max_tokens=4 + 5 * at % 23),
        )
        for at, one in enumerate(samplings)
    ]


class Anything:
    """Grammars, and masks, which allow all tokens and note when they are asked."""

    failure: str | None = None
    may_end = True

    def __init__(self, order: list[str]) -> None:
        self.order = order

    def ready(self, grammar: Grammar) -> bool:
        return bool(grammar)

    def matcher(self, grammar: Grammar, ends: frozenset[int]) -> "Anything":
        return self

    def advance(self, tokens: Sequence[int]) -> None:
        self.order += ["advance"] * len(tokens)

    def fill_bitmask(self, drafted: Sequence[int], bits: Tensor, row: int) -> None:
        self.order.append("mask")
        bits[row] = -1


def ordered(llama: Path, samplings: Sequence[Sampling], steps: int) -> list[str]:
    """What is done in decode steps of these, without what is done again at once."""
    engine, accelerator = ahead(llama)
    engine.sampler.grammars = Anything(accelerator.order)
    for number, sampling in enumerate(samplings):
        engine.generate(Request(RequestId(str(number)), PROMPTS[1], sampling))
    for step in range(steps + 1):
        engine.schedule()
        engine.step()
        if not step:
            accelerator.order.clear()  # of the prompts
    return [one for one, _ in groupby(accelerator.order)]


def test_the_next_step_is_launched_before_the_last_tokens_are_read(llama: Path) -> None:
    """Its draw follows, behind the masks that these make known."""
    rows = [replace(one, max_tokens=40, ignore_eos=True) for one in (GRAMMAR, PLAIN)]
    steady = ["advance", "mask", "draw", "replay", "read"]
    assert ordered(llama, rows, 5) == ["replay", *steady * 5]


def test_without_them_the_draw_is_launched_with_its_step(llama: Path) -> None:
    assert ordered(llama, [replace(PLAIN, max_tokens=40)] * 2, 4) == [
        *("replay", "draw"),
        *["replay", "draw", "read"] * 4,
    ]


def test_draws_are_late_only_while_an_end_is_held_back(llama: Path) -> None:
    """A draw leaves with its step again once it is known that there are as many tokens."""
    rows = [replace(PLAIN, max_tokens=40, min_tokens=4), replace(PLAIN, max_tokens=40)]
    late, free = ["draw", "replay", "read"], ["replay", "draw", "read"]
    assert ordered(llama, rows, 9) == ["replay", *late * 3, "draw", *free * 6]


@pytest.mark.parametrize("kind", BOUND)
def test_each_kind_beside_plain_rows(llama: Path, kind: str) -> None:
    wanted = asked(*[PLAIN, BOUND[kind], PENALISED, BOUND[kind]] * 2)
    expected = run(load(llama), wanted)
    engine, _ = ahead(llama, max_num_seqs=3, block_size=3, max_num_batched_tokens=40)
    assert run(engine, wanted) == expected


@pytest.mark.parametrize("seats", [2, 7])
def test_all_kinds_together(llama: Path, seats: int) -> None:
    wanted = asked(*BOUND.values(), PLAIN, PENALISED, *BOUND.values())
    expected = run(load(llama), wanted)
    assert len({len(answer) for answer in expected}) > 4
    engine, accelerator = ahead(llama, max_num_seqs=seats)
    assert run(engine, wanted) == expected
    assert accelerator.begun


def test_log_probabilities_are_the_models(llama: Path) -> None:
    """As the model found tokens, whatever masks and penalties make of its logits."""
    wanted = asked(*[replace(BOUND["all at once"], logprobs=2), replace(PLAIN, logprobs=0)] * 3)
    expected = told(load(llama), wanted)
    found = told(ahead(llama)[0], wanted)
    assert found.keys() == expected.keys()
    for name, ours in found.items():
        for one, other in zip(ours, expected[name], strict=True):
            assert (one.token, one.rank) == (other.token, other.rank)
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


def ends(engine: TorchEngine, wanted: list[Request]) -> dict[RequestId, list[object]]:
    """The tokens of each answer, and behind each what it told of an end."""
    said = dict[RequestId, list[object]]()
    for request in wanted:
        engine.generate(request)
    engine.schedule()
    while engine.load.waiting or engine.load.running:
        for one in engine.step().sampled:
            said.setdefault(one.request_id, []).extend([*one.tokens, one.finish])
        engine.schedule()
    assert_idle(engine)
    return said


def test_where_nothing_is_left_the_answer_fails_as_on_a_cpu(llama: Path) -> None:
    """After three tokens, while its next step was begun; those beside it go on."""
    tokenizer = Tokenizer.from_file(str(llama / "tokenizer.json"))
    digits = tuple(filter(None, map(tokenizer.token_to_id, "0123456789")))
    stuck = replace(
        PLAIN,
        grammar=Grammar("regex", "[0-9]{3}[a-z]{9}"),
        allowed_token_ids=digits,
        stop_token_ids=(300,),
    )
    wanted = [
        replace(one, sampling=replace(one.sampling, max_tokens=20))
        for one in asked(PLAIN, stuck, GRAMMAR, stuck)
    ]
    expected = ends(load(llama), wanted)
    assert ends(ahead(llama)[0], wanted) == expected
    failed = [said for said in expected.values() if FinishReason.ERROR in said]
    assert [(len(said), said[-2]) for said in failed] == [(8, 300)] * 2


def test_what_is_foretold_changes_nothing(llama: Path) -> None:
    """Masks or not: steps without drafts are drawn on the device, and none is in vain."""
    wanted = asked(*BOUND.values(), PLAIN)
    engine, accelerator = ahead(llama, speculative_config='{"num_speculative_tokens": 4}')
    assert run(engine, wanted) == run(load(llama), wanted)
    words = [word.split() for word in accelerator.told]
    begun, read = ({name for kind, name in words if kind == one} for one in ("begin", "read"))
    assert begun == read != set()


@pytest.mark.parametrize("kind", ["regex", "biased", "told of"])
def test_what_comes_over_joins_those_that_run(llama: Path, kind: str) -> None:
    wanted = [
        replace(one, sampling=replace(one.sampling, max_tokens=20))
        for one in asked(*[BOUND[kind], PLAIN] * 3)
    ]
    whole = run(load(llama), wanted)
    sink, _ = ahead(llama, max_num_seqs=7)
    assert hand_over(load(llama), sink, wanted) == whole
    assert_idle(sink)


def test_what_was_begun_and_not_drawn_is_waited_for(llama: Path) -> None:
    """Before others may write to blocks that are in it."""
    engine, accelerator = ahead(llama, max_num_seqs=7)
    for name in "ab":
        asked = requests([PROMPTS[3]], BOUND["masked"])[0]
        engine.generate(replace(asked, request_id=RequestId(name)))
    for _ in range(3):
        engine.schedule()
        engine.step()
    assert isinstance(engine.stepper, AheadStepper)
    assert engine.stepper.launched is not None
    assert engine.stepper.launched.draw is None
    first, second = requests([PROMPTS[2], PROMPTS[3]])
    assert eager(engine).reserve(first)
    assert accelerator.waits == 0
    engine.release(RequestId("b"))
    kv = engine.scheduler.sequences.kv
    kv.pool.take(kv.free_blocks - 1)  # the last to be handed out is the one of b's row
    assert engine.reserve(second)
    assert accelerator.waits == 1


@pytest.mark.parametrize("kind", ["regex", "all at once", "told of", "held back"])
def test_the_interpreted_kernels_draw_alike(llama: Path, kind: str) -> None:
    wanted = requests(PROMPTS[:2], replace(BOUND[kind], max_tokens=4))
    kernels = SamplingKernels(choose, adjust, apply_bitmasks, gather_logprobs)
    engine, _ = ahead(llama, kernels, max_num_batched_tokens=8)
    assert run(engine, wanted) == run(load(llama), wanted)
