"""A real engine's answers think freely first, and keep to their grammar behind that."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tokenizers import Tokenizer

from api.generator import TokenEvent
from engine.errors import UnknownToken
from engine.request import FinishReason, Grammar, ReasoningMarks, Request, RequestId, Sampling
from engine.torch_engine import TorchEngine
from tests.fakes.checkpoints import VOCABULARY
from tests.fakes.cluster import Cluster
from tests.fakes.driver import assert_idle, eager, hand_over, load, prompt, run
from tests.fakes.node import Ill
from tests.integration.test_ahead import ahead
from tests.integration.test_engine_grammars import PERSON, PROMPTS, fits, told

END, CLOSE, OPEN = 0, 1, 2  # special tokens, which no grammar writes
PERSONS = Grammar("json_schema", json.dumps(PERSON))
BEGUN, HALVED = ReasoningMarks(((CLOSE,),)), ReasoningMarks(((OPEN, CLOSE),))
TWO_WAYS = ReasoningMarks(((OPEN, OPEN), (CLOSE, OPEN, CLOSE)))
EITHER = ReasoningMarks(((CLOSE,),), ((OPEN,), (9, OPEN)))
LIKELY = ((CLOSE, 5.0), (OPEN, 4.5))
THINKS = Sampling(150, grammar=PERSONS, grammar_behind=BEGUN, logit_bias=LIKELY)
KINDS = {
    "begun": THINKS,
    "halved": replace(THINKS, grammar_behind=HALVED, logit_bias=((CLOSE, 7.0), (OPEN, 7.0))),
    "two ways": replace(
        THINKS, grammar_behind=TWO_WAYS, logit_bias=((CLOSE, 7.0), (OPEN, 6.5))
    ),
    "either": replace(THINKS, grammar_behind=EITHER),
    "cold": replace(THINKS, temperature=0, repetition_penalty=1.3, logit_bias=((CLOSE, 1.5),)),
    "held back": replace(THINKS, min_tokens=12, ignore_eos=True),
}
SEEDS = 12


@pytest.fixture(scope="module")
def engine(llama: Path) -> TorchEngine:
    return load(llama)


def asked(sampling: Sampling, count: int = SEEDS) -> list[Request]:
    """The same of each prompt in turn, each time with other noise."""
    return [
        Request(
            RequestId(str(seed)), PROMPTS[seed % len(PROMPTS)], replace(sampling, seed=seed)
        )
        for seed in range(count)
    ]


def every_kind() -> list[Request]:
    """Shorter, so that some are cut in their reasoning and some in their JSON."""
    wanted = [one for kind in KINDS.values() for one in asked(replace(kind, max_tokens=40), 4)]
    return [replace(one, request_id=RequestId(str(at))) for at, one in enumerate(wanted)]


@pytest.fixture(scope="module")
def alone(engine: TorchEngine) -> list[list[int]]:
    return [run(engine, [request])[0] for request in every_kind()]


def parted(answer: Sequence[int], marks: ReasoningMarks) -> tuple[list[int], list[int] | None]:
    """Reasoning with its marks, and what follows it; None where it does not end."""
    said = tuple(answer)
    if marks.opens and not any(said[: len(one)] == one for one in marks.opens):
        return [], list(answer)
    for end in range(1, len(said) + 1):
        if any(said[:end][-len(one) :] == one for one in marks.closes):
            return list(answer[:end]), list(answer[end:])
    return list(answer), None


@pytest.mark.parametrize("kind", KINDS)
def test_what_follows_the_mark_is_json_and_what_is_before_is_free(
    engine: TorchEngine, tokenizer: Tokenizer, kind: str
) -> None:
    wanted, whole, thoughts = asked(KINDS[kind]), 0, list[list[int]]()
    marks = KINDS[kind].grammar_behind
    assert marks is not None
    for answer in run(engine, wanted):
        thought, rest = parted(answer, marks)
        thoughts.append(thought)
        if rest and rest[-1] == END:
            whole += 1
            assert fits("json_schema", tokenizer.decode(rest))
            assert not {CLOSE, OPEN}.intersection(rest)
        elif rest:  # cut short: no other token ends the reasoning or the grammar
            assert len(answer) == THINKS.max_tokens
    assert whole > SEEDS / 2
    free = [one for one in thoughts if len(one) > max(map(len, marks.closes)) + 2]
    assert len(free) > SEEDS / 4
    assert len({tuple(one) for one in free}) > SEEDS / 6
    texts = [tokenizer.decode(one) for one in free]
    assert not any(text.startswith("{") for text in texts)


def test_who_may_think_or_not_does_either_and_is_held_in_both(
    engine: TorchEngine, tokenizer: Tokenizer
) -> None:
    answers = run(
        engine, asked(replace(KINDS["either"], logit_bias=((OPEN, 3.0), *LIKELY[:1])))
    )
    at_once = [one for one in answers if one[0] != OPEN and one[:2] != [9, OPEN]]
    assert 0 < len(at_once) < SEEDS
    ended = [tokenizer.decode(one) for one in at_once if one[-1] == END]
    assert ended
    assert all(fits("json_schema", text) for text in ended)


def test_a_batch_is_each_alone(engine: TorchEngine, alone: list[list[int]]) -> None:
    beside = Request(RequestId("plain"), prompt(20), Sampling(30, seed=3, ignore_eos=True))
    assert run(engine, [beside, *every_kind()]) == [run(engine, [beside])[0], *alone]


def test_split_is_one_engine(llama: Path, alone: list[list[int]]) -> None:
    source, sink = load(llama), load(llama)
    assert hand_over(source, sink, every_kind()) == alone
    assert_idle(source)
    assert_idle(sink)


def test_preempted_is_undisturbed(llama: Path, alone: list[list[int]]) -> None:
    token_bytes = load(llama, block_size=1).kv_regions[0].block_bytes
    room = {"max_model_len": 100, "kv_cache_memory_bytes": 102 * token_bytes}
    small = eager(load(llama, block_size=4, **room))
    assert run(small, every_kind()) == alone
    assert small.load.preemptions > 0


def test_steps_begun_ahead_change_nothing(llama: Path, alone: list[list[int]]) -> None:
    engine, accelerator = ahead(llama, max_num_seqs=5)
    assert run(engine, every_kind()) == alone
    assert accelerator.begun


def test_an_answer_goes_on_from_any_of_its_tokens(
    engine: TorchEngine, alone: list[list[int]]
) -> None:
    """In its reasoning, in the middle of a mark, right behind it and in its JSON."""
    places = set[str]()
    for request, answer in zip(every_kind()[::2], alone[::2], strict=True):
        marks = request.sampling.grammar_behind
        assert marks is not None
        thought, _ = parted(answer, marks)
        near = range(max(1, len(thought) - 2), min(len(answer), len(thought) + 4))
        for kept in sorted({1, *near, len(answer) - 1}):
            places.add("json" if kept > len(thought) else "thought")
            again = replace(request, generated=tuple(answer[:kept]))
            assert run(engine, [again]) == [answer[kept:]]
    assert places == {"json", "thought"}


def test_foretold_tokens_change_nothing(llama: Path, tokenizer: Tokenizer) -> None:
    """Prompts that say reasoning, marks and answers already."""
    person = tokenizer.encode('{"name":"Ada","age":7,"tags":[true]}').ids
    said = (5, 6, 7, CLOSE, *person, END, OPEN, 5, 6, CLOSE, *person, END, 9, OPEN, CLOSE)
    wanted = [
        replace(one, prompt=(*said, *said, *one.prompt), sampling=replace(one.sampling, seed=7))
        for one in every_kind()
    ]
    drafting = load(llama, speculative_config='{"num_speculative_tokens": 6}')
    assert run(drafting, wanted) == run(load(llama), wanted)
    assert 0 < drafting.load.accepted_tokens < drafting.load.draft_tokens


@pytest.mark.parametrize("behind", [-3, -1, 0, 1, 2, 9])
async def test_where_a_node_dies_another_goes_on(
    llama: Path, engine: TorchEngine, behind: int
) -> None:
    """So many tokens behind the reasoning, or before its end."""
    wanted = asked(replace(THINKS, logit_bias=((CLOSE, 3.0),)), 5)
    request, whole = max(
        zip(wanted, run(engine, wanted), strict=True), key=lambda one: one[1].index(CLOSE)
    )
    thought, _ = parted(whole, BEGUN)
    assert len(thought) > 4
    cluster, said = Cluster(1, 2, engine=lambda: load(llama)), list[int]()
    async for event in cluster.pipeline.stream(request):
        said += event.tokens if isinstance(event, TokenEvent) else ()
        if len(said) == len(thought) + behind and not cluster.decodes[0].dead:
            cluster.decodes[0].suffer(Ill.KILL)
    assert cluster.decodes[0].dead
    assert said == whole
    cluster.expire()
    assert cluster.leaked_blocks == 0


@pytest.mark.parametrize(
    ("more", "ends"),
    [({}, True), ({"ignore_eos": True}, False), ({"min_tokens": 20}, False)],
)
def test_an_end_in_the_reasoning_ends_the_answer_if_it_may(
    engine: TorchEngine, more: dict[str, Any], ends: bool
) -> None:
    likely = replace(THINKS, logit_bias=((END, 100.0), (CLOSE, -100.0)), max_tokens=15)
    request = Request(RequestId("a"), PROMPTS[0], replace(likely, **more))
    tokens, finish = told(engine, request)
    assert (finish is FinishReason.STOP) is ends
    assert (len(tokens) == 1) is ends


def test_marks_that_the_vocabulary_lacks_are_refused_and_cost_nothing(
    engine: TorchEngine,
) -> None:
    odd = replace(THINKS, grammar_behind=ReasoningMarks(((VOCABULARY,),)))
    request = Request(RequestId("a"), prompt(5), odd)
    for hand_in in (engine.generate, engine.prefill, engine.reserve):
        with pytest.raises(UnknownToken, match="grammar_behind"):
            hand_in(request)
    assert_idle(engine)
