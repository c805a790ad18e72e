"""What is foretold saves steps and changes nothing: not tokens, ends or log-probabilities."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from tokenizers import Tokenizer

from engine.api import Sampled
from engine.request import FinishReason, Grammar, Request, RequestId, Sampling
from engine.torch_engine import TorchEngine
from tests.fakes.driver import assert_idle, copy_blocks, drain, eager, load, prompt, requests

ON = {"speculative_config": '{"num_speculative_tokens": 6}'}
GREEDY = Sampling(max_tokens=40, temperature=0, ignore_eos=True)
REPETITIVE = replace(GREEDY, allowed_token_ids=(5, 6))
ROUNDS = Grammar("regex", "(the cat and the dog, ){1,5}end")
SAMPLINGS = {
    "greedy": GREEDY,
    "seeded": replace(GREEDY, temperature=0.4, top_p=0.8, seed=3),
    "penalised": replace(GREEDY, repetition_penalty=1.05, frequency_penalty=0.02),
    "masked": REPETITIVE,
    "grammar": replace(GREEDY, temperature=0.3, ignore_eos=False, grammar=ROUNDS),
    "biased": replace(GREEDY, logit_bias=((7, 3.0),), min_tokens=30, bad_words=((1, 2),)),
}
LENGTHS = (1, 7, 16, 17, 40, 90)
PROMPTS = [tuple(prompt(length)[: 1 + length // 3] * 3)[:length] for length in LENGTHS]
samplings = pytest.mark.parametrize("kind", SAMPLINGS)


def told(engine: TorchEngine, asked: list[Request]) -> dict[RequestId, list[Sampled]]:
    for request in asked:
        engine.generate(request)
    said: dict[RequestId, list[Sampled]] = {}
    while engine.load.waiting or engine.load.running:
        engine.schedule()
        for one in engine.step().sampled:
            said.setdefault(one.request_id, []).append(one)
        engine.scheduler.sequences.kv.check()
    assert_idle(engine)
    return said


def tokens(said: list[Sampled]) -> list[int]:
    return [token for one in said for token in one.tokens]


def answers(engine: TorchEngine, asked: list[Request]) -> list[list[int]]:
    said = told(engine, asked)
    return [tokens(said[request.request_id]) for request in asked]


@samplings
def test_the_tokens_are_the_same(llama: Path, kind: str) -> None:
    asked, engine = requests(PROMPTS, SAMPLINGS[kind]), load(llama, **ON)
    assert answers(engine, asked) == answers(load(llama), asked)
    assert 0 < engine.load.accepted_tokens < engine.load.draft_tokens


def test_there_are_fewer_steps_than_tokens(llama: Path) -> None:
    (request,) = requests(PROMPTS[-1:], REPETITIVE)
    engine = load(llama, **ON)
    (said,) = told(engine, [request]).values()
    assert len(tokens(said)) == 40
    assert len(said) < 25
    assert max(len(one.tokens) for one in said) > 2
    assert engine.load.accepted_tokens == 40 - len(said)


@samplings
def test_an_answer_ends_where_it_ends(llama: Path, kind: str) -> None:
    plain, engine = load(llama), load(llama, **ON)
    (request,) = requests(PROMPTS[-1:], SAMPLINGS[kind])
    (usual,) = answers(plain, [request])
    for end in range(3, 40, 4):
        for shape in (
            {"max_tokens": end},
            {"stop_token_ids": (usual[end],)},
            {"stop_token_ids": (usual[end],), "min_tokens": end - 2},
        ):
            asked = replace(request, sampling=replace(request.sampling, **shape))
            (expected,), (said,) = (told(one, [asked]).values() for one in (plain, engine))
            assert tokens(said) == tokens(expected)
            assert said[-1].finish == expected[-1].finish
            assert said[-1].stop_reason == expected[-1].stop_reason
            assert [one.finish for one in said[:-1]] == [None] * (len(said) - 1)


def test_log_probabilities_are_those_of_each_token(llama: Path) -> None:
    (request,) = requests(PROMPTS[-1:], replace(REPETITIVE, logprobs=2))
    engine = load(llama, **ON)
    (expected,), (said,) = (told(one, [request]).values() for one in (load(llama), engine))
    assert any(len(one.tokens) > 1 for one in said)
    assert all(len(one.logprobs) == len(one.tokens) for one in said)
    pairs = zip(
        (place for one in said for place in one.logprobs),
        (place for one in expected for place in one.logprobs),
        strict=True,
    )
    for ours, theirs in pairs:
        assert [one.token for one in ours] == [one.token for one in theirs]
        assert [one.logprob for one in ours] == pytest.approx(
            [one.logprob for one in theirs], abs=1e-4
        )


@pytest.mark.parametrize("kind", ["greedy", "seeded"])
def test_preempted_is_undisturbed(llama: Path, kind: str) -> None:
    token_bytes = load(llama, block_size=1).kv_regions[0].block_bytes
    tight = {"max_model_len": 132, "block_size": 4, "kv_cache_memory_bytes": 132 * token_bytes}
    engine, asked = eager(load(llama, **tight, **ON)), requests(PROMPTS, SAMPLINGS[kind])
    assert answers(engine, asked) == answers(load(llama), asked)
    assert engine.load.preemptions > 0
    assert engine.load.accepted_tokens > 0


@pytest.mark.parametrize("chunk", [7, 8, 40])
def test_prompts_beside_drafts_get_all_they_would_get(llama: Path, chunk: int) -> None:
    """Drafts take what is spare, and no step is larger than a batch may be."""
    engine, asked = load(llama, max_num_batched_tokens=chunk, **ON), requests(PROMPTS, GREEDY)
    expected = answers(load(llama), asked)
    for request in asked:
        engine.generate(request)
    said = dict[RequestId, list[int]]()
    while engine.load.waiting or engine.load.running:
        engine.schedule()
        batch = engine.scheduler.batch
        assert sum(one.size for one in batch) <= chunk
        prompts = [one for one in batch if not one.ends]
        assert not (prompts and any(one.drafts for one in batch))
        for one in engine.step().sampled:
            said.setdefault(one.request_id, []).extend(one.tokens)
    assert list(map(said.get, (one.request_id for one in asked))) == expected


@samplings
def test_split_is_one_engine(llama: Path, kind: str) -> None:
    asked = requests(PROMPTS, SAMPLINGS[kind])
    expected = answers(load(llama), asked)
    source, sink = load(llama, **ON), load(llama, **ON)
    for request in asked:
        source.prefill(request)
    source.schedule()
    said = drain(source)
    assert source.load.draft_tokens == 0
    for request in asked:
        name, reserved = request.request_id, sink.reserve(request)
        assert reserved is not None
        copy_blocks(source, sink, zip(source.blocks(name), reserved.blocks, strict=True))
        source.release(name)
        sink.resume(name, said[name])
    sink.schedule()
    for name, rest in drain(sink).items():
        said[name] += rest
    assert [said[request.request_id] for request in asked] == expected
    assert sink.load.accepted_tokens > 0
    assert_idle(sink)


def test_a_grammar_that_is_stuck_behind_drafts_fails_as_it_does_without(llama: Path) -> None:
    """Its end may not be said, and drafts come true up to there."""
    vocabulary = Tokenizer.from_file(str(llama / "tokenizer.json"))
    letters = tuple(vocabulary.encode("ab").ids)
    stuck = replace(GREEDY, allowed_token_ids=letters, grammar=Grammar("regex", "(ab){10}x"))
    (request,), engine = requests(PROMPTS[-1:], stuck), load(llama, **ON)
    (expected,), (said,) = (told(one, [request]).values() for one in (load(llama), engine))
    assert expected[-1].finish is FinishReason.ERROR
    assert said[-1].finish is FinishReason.ERROR
    assert tokens(said) == tokens(expected)
    assert engine.load.accepted_tokens > 8
