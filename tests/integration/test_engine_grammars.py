"""Answers of a real engine keep to their grammars, wherever and beside whomever they run."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tokenizers import Tokenizer

from engine.errors import GrammarRefused
from engine.request import FinishReason, Grammar, Request, RequestId, Sampling
from engine.torch_engine import TorchEngine
from tests.fakes.driver import (
    assert_idle,
    drain,
    eager,
    load,
    move,
    park,
    prompt,
    requests,
    run,
)

PERSON = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Ada", "Bo"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
CALL = {
    "type": "triggered_tags",
    "triggers": ["<f="],
    "tags": [
        {
            "type": "tag",
            "begin": "<f=go>",
            "content": {"type": "regex", "pattern": "[0-9]{1,3}"},
            "end": "</f>",
        }
    ],
    "at_least_one": True,
    "stop_after_first": True,
}
GRAMMARS = {
    "json_schema": Grammar("json_schema", json.dumps(PERSON)),
    "regex": Grammar("regex", "[a-f]{2,9}-(red|green)"),
    "choice": Grammar("choice", '["yes", "no", "maybe so"]'),
    "ebnf": Grammar("ebnf", 'root ::= "(" root ")" | [0-9] ("+" [0-9]){0,3}'),
    "structural_tag": Grammar("structural_tag", json.dumps({"format": CALL})),
}
PROMPTS = [prompt(length) for length in (3, 16, 33, 50)]


@pytest.fixture(scope="module")
def engine(llama: Path) -> TorchEngine:
    return load(llama)


def fits(kind: str, text: str) -> bool:
    match kind:
        case "json_schema":
            return _is_person(json.loads(text))
        case "choice":
            return text in ("yes", "no", "maybe so")
        case "regex":
            return re.fullmatch("[a-f]{2,9}-(red|green)", text) is not None
        case "structural_tag":
            return re.fullmatch("<f=go>[0-9]{1,3}</f>", text) is not None
    depth = text.count("(")
    inner = text.removeprefix("(" * depth).removesuffix(")" * depth)
    return re.fullmatch(r"[0-9](\+[0-9]){0,3}", inner) is not None


def _is_person(said: Mapping[str, Any]) -> bool:
    tags = said["tags"]
    assert set(said) == {"name", "age", "tags"}
    assert len(tags) <= 2
    assert all(isinstance(tag, bool) for tag in tags)
    return said["name"] in ("Ada", "Bo") and 0 <= said["age"] <= 130


def asking(kind: str, **more: object) -> Sampling:
    settings: dict[str, Any] = {"max_tokens": 120, "seed": 7, **more}
    return Sampling(grammar=GRAMMARS[kind], **settings)


def every_kind() -> list[Request]:
    """Every grammar over every prompt, each with its own noise."""
    asked = [
        replace(one, sampling=asking(kind, seed=number, max_tokens=30))
        for number, kind in enumerate(GRAMMARS)
        for one in requests(PROMPTS)
    ]
    return [replace(one, request_id=RequestId(str(i))) for i, one in enumerate(asked)]


@pytest.fixture(scope="module")
def alone(engine: TorchEngine) -> list[list[int]]:
    return [run(engine, [request])[0] for request in every_kind()]


@pytest.mark.parametrize("kind", GRAMMARS)
@pytest.mark.parametrize("temperature", [0.0, 1.0, 1e6])
def test_every_answer_fits(
    engine: TorchEngine, tokenizer: Tokenizer, kind: str, temperature: float
) -> None:
    sampling = [asking(kind, seed=seed, temperature=temperature) for seed in range(6)]
    asked = [replace(one, sampling=s) for one in requests(PROMPTS[:1]) for s in sampling]
    asked = [replace(one, request_id=RequestId(str(i))) for i, one in enumerate(asked)]
    ended = 0
    for answer in run(engine, asked):
        if answer[-1] == 0:
            ended += 1
            assert 0 not in answer[:-1]
            assert fits(kind, tokenizer.decode(answer))
    assert ended >= 5  # recursion may take all the tokens there are


def test_a_batch_is_each_alone_and_plain_answers_stay_as_they_are(
    engine: TorchEngine, alone: list[list[int]]
) -> None:
    plain = requests(PROMPTS, Sampling(max_tokens=30, seed=3, ignore_eos=True))
    plain = [replace(one, request_id=RequestId(f"plain {one.request_id}")) for one in plain]
    expected = [run(engine, [one])[0] for one in plain]
    answers = run(engine, [*plain[:2], *every_kind(), *plain[2:]])
    assert answers[:2] + answers[-2:] == expected
    assert answers[2:-2] == alone


def test_split_is_one_engine(llama: Path, alone: list[list[int]]) -> None:
    source, sink, asked = load(llama), load(llama), every_kind()
    first = park(source, asked)
    answers = dict[RequestId, list[int]]()
    for number, request in enumerate(asked):
        name = request.request_id
        move(source, sink, request)
        booked = sink.resume(name, [first[name]] if number % 2 else [])
        answers[name] = [token for one in booked for token in one.tokens]
    sink.schedule()
    for name, rest in drain(sink).items():
        answers[name] += rest
    assert [answers[one.request_id] for one in asked] == alone
    assert_idle(source)
    assert_idle(sink)


def test_preempted_is_undisturbed(llama: Path, alone: list[list[int]]) -> None:
    token_bytes = load(llama, block_size=1).kv_regions[0].block_bytes
    room = {"max_model_len": 90, "kv_cache_memory_bytes": 92 * token_bytes}
    small = eager(load(llama, block_size=4, **room))
    assert run(small, every_kind()) == alone
    assert small.load.preemptions > 0


def test_foretold_tokens_change_nothing(llama: Path) -> None:
    """Prompts that say the answers already, so that most of what is foretold comes."""
    tokenizer = Tokenizer.from_file(str(llama / "tokenizer.json"))
    said = "yes no maybe so abcabc-red abcabc-green (((((((1+1+1+1 <f=go>111</f> "
    before = tuple(tokenizer.encode(said * 2).ids)
    asked = [
        replace(
            one, prompt=before + one.prompt, sampling=replace(one.sampling, temperature=heat)
        )
        for one in every_kind()
        for heat in (0.0, 1.0)
    ]
    asked = [replace(one, request_id=RequestId(str(i))) for i, one in enumerate(asked)]
    drafting = load(llama, speculative_config='{"num_speculative_tokens": 6}')
    assert run(drafting, asked) == run(load(llama), asked)
    assert 0 < drafting.load.accepted_tokens < drafting.load.draft_tokens


def test_an_answer_goes_on_from_any_of_its_tokens(
    engine: TorchEngine, alone: list[list[int]]
) -> None:
    for request, answer in zip(every_kind()[::3], alone[::3], strict=True):
        for kept in (1, len(answer) // 2, len(answer) - 1):
            again = replace(request, generated=tuple(answer[:kept]))
            assert run(engine, [again]) == [answer[kept:]]


def test_choices_share_a_grammar(engine: TorchEngine, tokenizer: Tokenizer) -> None:
    (one,) = requests(PROMPTS[:1], asking("regex"))
    asked = [
        replace(
            one,
            request_id=RequestId(f"choice {index}"),
            sampling=replace(one.sampling, sample_index=index),
        )
        for index in range(8)
    ]
    texts = [tokenizer.decode(answer) for answer in run(engine, asked)]
    assert all(fits("regex", text) for text in texts)
    assert len(set(texts)) > 4


@pytest.mark.parametrize(
    "more",
    [
        {"ignore_eos": True},
        {"min_tokens": 100},
        {"min_tokens": 100, "ignore_eos": True, "temperature": 0.0},
        {"stop_token_ids": (7,), "ignore_eos": True},
        {"bad_words": ((0,),)},
        {"logit_bias": ((0, -100.0),)},
    ],
    ids=str,
)
def test_an_answer_that_can_only_end_ends(
    engine: TorchEngine, tokenizer: Tokenizer, more: dict[str, Any]
) -> None:
    request = Request(RequestId("a"), PROMPTS[0], asking("regex", **more))
    answer, finish = told(engine, request)
    assert finish is FinishReason.STOP
    assert answer[-1] in (0, 7)
    assert len(answer) < 40
    assert fits("regex", tokenizer.decode(answer[:-1]))


def test_what_leaves_nothing_fails_alone(engine: TorchEngine, alone: list[list[int]]) -> None:
    nothing = asking("regex", allowed_token_ids=(4, 5))
    _, finish = told(engine, Request(RequestId("a"), PROMPTS[0], nothing))
    assert finish is FinishReason.ERROR
    strange = Request(RequestId("a"), PROMPTS[0], asking("regex"), generated=(9, 9))
    _, finish = told(engine, strange)
    assert finish is FinishReason.ERROR
    beside = every_kind()[0]
    assert run(engine, [strange, beside])[1] == alone[0]


def test_a_grammar_that_cannot_be_is_refused_and_costs_nothing(engine: TorchEngine) -> None:
    request = Request(RequestId("a"), PROMPTS[0], Sampling(grammar=Grammar("regex", "(")))
    for hand_in in (engine.generate, engine.prefill, engine.reserve):
        with pytest.raises(GrammarRefused, match="regex"):
            hand_in(request)
    assert_idle(engine)


def test_the_batch_goes_on_while_a_grammar_is_compiled(engine: TorchEngine) -> None:
    large = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(300)}}
    grammar = Grammar("json_schema", json.dumps(large))
    early = Request(RequestId("early"), PROMPTS[0], Sampling(grammar=grammar, max_tokens=2))
    (plain,) = requests(PROMPTS[1:2], Sampling(max_tokens=400, seed=1, ignore_eos=True))
    engine.generate(plain)
    engine.schedule()
    assert not engine.ready(early)
    steps = 0
    while not engine.ready(early):
        engine.step()
        engine.schedule()
        steps += 1
    assert steps > 1
    engine.release(plain.request_id)
    assert len(run(engine, [early])[0]) == 2


def told(engine: TorchEngine, request: Request) -> tuple[list[int], FinishReason | None]:
    engine.generate(request)
    tokens, finish = list[int](), None
    while finish is None:
        engine.schedule()
        for one in engine.step().sampled:
            tokens, finish = [*tokens, *one.tokens], one.finish
    assert_idle(engine)
    return tokens, finish
