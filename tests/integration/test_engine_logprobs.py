"""Log-probabilities of answers and prompts are the model's, and said once, in any batch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from engine.request import Logprobs, Request, RequestId, Sampling
from engine.torch_engine import TorchEngine
from tests.fakes.checkpoints import VOCABULARY
from tests.fakes.driver import (
    assert_idle,
    copy_blocks,
    eager,
    load,
    prompt,
    prompt_logits,
    requests,
)

PROMPTS = [prompt(length) for length in (1, 2, 16, 17, 40, 150)]
ASKED = Sampling(max_tokens=6, temperature=0, ignore_eos=True, logprobs=3, prompt_logprobs=2)
TOLERANCE = 1e-4


@dataclass
class Heard:
    """What an engine said of one request."""

    prompt: tuple[Logprobs, ...] | None = None
    tokens: list[int] = field(default_factory=list)
    answer: list[Logprobs] = field(default_factory=list)


@pytest.fixture(scope="module")
def model(llama: Path) -> TorchEngine:
    """For its decoder alone."""
    return load(llama)


def listen(engine: TorchEngine) -> dict[RequestId, Heard]:
    """Until nothing runs; prompts are told once, before their answers."""
    heard = dict[RequestId, Heard]()
    while engine.load.waiting or engine.load.running:
        engine.schedule()
        result = engine.step()
        for scored in result.scored:
            assert scored.request_id not in heard
            heard[scored.request_id] = Heard(scored.logprobs)
        for one in result.sampled:
            said = heard.setdefault(one.request_id, Heard())
            said.tokens += one.tokens
            said.answer += one.logprobs
    return heard


def ask(engine: TorchEngine, asked: Iterable[Request]) -> list[Heard]:
    asked = list(asked)
    for request in asked:
        engine.generate(request)
    heard = listen(engine)
    assert_idle(engine)
    return [heard[request.request_id] for request in asked]


def must_be(
    model: TorchEngine, told: Sequence[Logprobs], tokens: Sequence[int], most: int
) -> None:
    """Of the last tokens, one entry each; from one pass over all of them."""
    table = prompt_logits(model, tokens, len(tokens)).double().log_softmax(1)[:-1]
    table, followed = table[len(table) - len(told) :], tokens[len(tokens) - len(told) :]
    for row, token, ours in zip(table, followed, told, strict=True):
        ids = [token, *row.topk(most if most >= 0 else VOCABULARY).indices.tolist()]
        assert [one.token for one in ours] == ids
        assert [one.rank for one in ours] == [1 + int((row > row[one]).sum()) for one in ids]
        ours_told = torch.tensor([one.logprob for one in ours])
        torch.testing.assert_close(ours_told.double(), row[ids], atol=TOLERANCE, rtol=0)


def must_be_right(model: TorchEngine, heard: Heard, request: Request) -> None:
    """Both the prompt's and the answer's."""
    assert heard.prompt is not None
    assert len(heard.prompt) == len(request.prompt) - 1
    assert len(heard.answer) == len(heard.tokens)
    if heard.prompt:
        must_be(model, heard.prompt, request.prompt, 2)
    must_be(model, heard.answer, (*request.prompt, *heard.tokens), 3)


@pytest.mark.parametrize("chunk", [3, 16, 512])
def test_whatever_the_chunks_they_are_the_models(
    llama: Path, model: TorchEngine, chunk: int
) -> None:
    asked = requests(PROMPTS, ASKED)
    heard = ask(load(llama, max_num_batched_tokens=chunk), asked)
    for one, request in zip(heard, asked, strict=True):
        must_be_right(model, one, request)


def test_who_does_not_ask_is_not_told(llama: Path) -> None:
    plain = replace(ASKED, logprobs=None, prompt_logprobs=None)
    only_prompt, only_answer = replace(plain, prompt_logprobs=0), replace(plain, logprobs=0)
    asked = [
        replace(request, sampling=sampling)
        for request, sampling in zip(
            requests(PROMPTS[-3:]), (plain, only_prompt, only_answer), strict=True
        )
    ]
    one, two, three = ask(load(llama), asked)
    assert (one.prompt, one.answer) == (None, [])
    assert two.prompt is not None
    assert [len(row) for row in two.prompt] == [1] * 39
    assert two.answer == []
    assert (three.prompt, [len(row) for row in three.answer]) == (None, [1] * 6)


def test_all_of_the_vocabulary_is_told(llama: Path, model: TorchEngine) -> None:
    sampling = replace(ASKED, logprobs=-1, prompt_logprobs=-1, max_tokens=2)
    (request,) = requests(PROMPTS[3:4], sampling)
    (heard,) = ask(load(llama), [request])
    assert heard.prompt is not None
    must_be(model, heard.prompt, request.prompt, -1)
    must_be(model, heard.answer, (*request.prompt, *heard.tokens), -1)


def test_a_known_prefix_is_computed_to_be_scored(llama: Path, model: TorchEngine) -> None:
    """And known to others all the same."""
    engine = load(llama)
    (request,) = requests(PROMPTS[-1:], ASKED)
    first, again = ask(engine, [request]), ask(engine, [request])
    assert first == again
    must_be_right(model, again[0], request)
    engine.generate(replace(request, sampling=replace(ASKED, prompt_logprobs=None)))
    (admitted,) = engine.schedule()
    assert admitted.cached_tokens == 144
    assert listen(engine)[request.request_id].tokens == first[0].tokens


def tight(llama: Path, *, prefix_cache: bool) -> TorchEngine:
    """It has room for 104 tokens."""
    token_bytes = load(llama, block_size=1).kv_regions[0].block_bytes
    return load(
        llama,
        max_model_len=100,
        block_size=4,
        max_num_batched_tokens=20,
        kv_cache_memory_bytes=104 * token_bytes,
        enable_prefix_caching=prefix_cache,
    )


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_preempted_answers_leave_prompts_told_once(
    llama: Path, model: TorchEngine, prefix_cache: bool
) -> None:
    engine, lengths = eager(tight(llama, prefix_cache=prefix_cache)), (30, 50, 60, 45, 17)
    asked = requests([prompt(one) for one in lengths], replace(ASKED, max_tokens=25))
    heard = ask(engine, asked)
    assert engine.load.preemptions > 0
    for one, request in zip(heard, asked, strict=True):
        must_be_right(model, one, request)


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_a_prompt_preempted_half_way_is_told_whole(
    llama: Path, model: TorchEngine, prefix_cache: bool
) -> None:
    """Its first half is scored already, and partly known when it comes back."""
    engine = tight(llama, prefix_cache=prefix_cache)
    long, urgent = requests([prompt(90), prompt(40)], ASKED)
    engine.generate(long)
    for _ in range(3):
        engine.schedule()
        assert not engine.step().scored
    engine.generate(replace(urgent, priority=-1))
    heard = listen(engine)
    assert engine.load.preemptions == 1
    must_be_right(model, heard[long.request_id], long)
    must_be_right(model, heard[urgent.request_id], urgent)
    assert_idle(engine)


def test_a_prompt_is_told_where_it_is_run(llama: Path, model: TorchEngine) -> None:
    """Split: by the first engine. The second tells of tokens from where it is to sample."""
    source, sink = load(llama, max_num_batched_tokens=32), load(llama)
    (request,) = requests(PROMPTS[-1:], ASKED)
    source.prefill(request)
    parked = listen(source)[request.request_id]
    must_be_right(model, parked, request)
    reserved = sink.reserve(request)
    assert reserved is not None
    pairs = zip(source.blocks(request.request_id), reserved.blocks, strict=True)
    copy_blocks(source, sink, list(pairs))
    source.release(request.request_id)
    assert sink.resume(request.request_id, []) == []
    heard = listen(sink)[request.request_id]
    assert heard.prompt is None
    assert heard.tokens[:1] == parked.tokens
    must_be(model, heard.answer, (*request.prompt, *heard.tokens), 3)
    assert_idle(source)
    assert_idle(sink)


def test_what_was_told_before_the_answer_is_not_told_within(llama: Path) -> None:
    (request,) = requests(PROMPTS[-1:], ASKED)
    (retried,) = ask(load(llama), [replace(request, generated=(5, 6))])
    assert retried.prompt is None
    assert len(retried.answer) == len(retried.tokens) == 4
