"""Nothing but the request decides its tokens: not chunks, batch, preemption or cache."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.request import Request, RequestId, Sampling
from engine.torch_engine import TorchEngine
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.driver import (
    assert_idle,
    drain,
    load,
    prompt,
    prompt_logits,
    requests,
    run,
)

LENGTHS = (1, 5, 16, 17, 40, 64, 90)
PROMPTS = [prompt(length) for length in LENGTHS]
GREEDY = Sampling(max_tokens=20, temperature=0, ignore_eos=True)
SEEDED = Sampling(
    max_tokens=20, temperature=0.9, top_k=60, top_p=0.95, min_p=0.001, seed=11, min_tokens=3
)
SHAPED = Sampling(
    max_tokens=20,
    min_tokens=6,
    temperature=0.8,
    seed=4,
    presence_penalty=0.4,
    frequency_penalty=0.3,
    repetition_penalty=1.2,
    logit_bias=((5, 2.5), (6, 2.5), (9, 2.5), (10, -3.0)),
    bad_words=((5,), (6, 9), (9, 6), (9, 9, 9)),
    logprobs=2,
)
Answers = dict[Sampling, list[list[int]]]
KINDS = {"greedy": GREEDY, "seeded": SEEDED, "shaped": SHAPED}
samplings = pytest.mark.parametrize("sampling", KINDS.values(), ids=KINDS)


@pytest.fixture(scope="module")
def engine(llama: Path) -> TorchEngine:
    return load(llama, enable_prefix_caching=False)


@pytest.fixture(scope="module")
def alone(engine: TorchEngine) -> Answers:
    """What each request says when it is the only one, its prompt in one piece."""
    return {
        sampling: [run(engine, [request])[0] for request in requests(PROMPTS, sampling)]
        for sampling in KINDS.values()
    }


def test_noise_and_prompts_make_different_answers(alone: Answers) -> None:
    everything = [tuple(answer) for answers in alone.values() for answer in answers]
    assert len(set(everything)) == len(everything)


@samplings
@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    chunk=st.integers(1, 120),
    block_size=st.integers(1, 20),
    seats=st.integers(1, 8),
    order=st.permutations(range(len(LENGTHS))),
)
def test_any_chunks_any_batch(
    llama: Path,
    alone: Answers,
    sampling: Sampling,
    chunk: int,
    block_size: int,
    seats: int,
    order: list[int],
) -> None:
    engine = load(
        llama, max_num_batched_tokens=chunk, block_size=block_size, max_num_seqs=seats
    )
    answers = run(engine, requests([PROMPTS[index] for index in order], sampling))
    assert answers == [alone[sampling][index] for index in order]


def test_long_and_short_together(tmp_path: Path) -> None:
    """They decode in one batch, each among those of its own size."""
    engine = load(make_checkpoint(tmp_path, max_position_embeddings=2048))
    asked = requests([prompt(length) for length in (1300, 5, 600, 40, 1200, 500)], GREEDY)
    assert run(engine, asked) == [run(engine, [request])[0] for request in asked]


@pytest.mark.parametrize("chunk", [1, 3, 16, 32, 89])
def test_chunks_leave_the_logits_alone(engine: TorchEngine, chunk: int) -> None:
    whole = prompt_logits(engine, PROMPTS[-1], len(PROMPTS[-1]))
    parts = prompt_logits(engine, PROMPTS[-1], chunk)
    torch.testing.assert_close(parts, whole, atol=1e-5, rtol=1e-5)


@samplings
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_preempted_is_undisturbed(
    llama: Path, alone: Answers, sampling: Sampling, prefix_cache: bool
) -> None:
    token_bytes = load(llama, block_size=1).kv_regions[0].block_bytes
    engine = load(
        llama,
        max_model_len=110,
        block_size=4,
        kv_cache_memory_bytes=112 * token_bytes,
        enable_prefix_caching=prefix_cache,
    )
    answers = run(engine, requests(PROMPTS, sampling))
    assert engine.load.preemptions > 0
    assert answers == alone[sampling]


@samplings
def test_a_known_prefix_changes_nothing(
    llama: Path, alone: Answers, sampling: Sampling
) -> None:
    engine = load(llama)
    longest = requests(PROMPTS, sampling)[-1]
    assert run(engine, [longest]) == [alone[sampling][-1]]
    assert cached_tokens(engine, longest) == 80
    assert [drain(engine)[longest.request_id]] == [alone[sampling][-1]]
    assert_idle(engine)


def test_another_salt_shares_nothing(llama: Path) -> None:
    engine = load(llama)
    (request,) = requests(PROMPTS[-1:])
    run(engine, [request])
    assert cached_tokens(engine, replace(request, cache_salt="other")) == 0


def test_an_answer_is_a_prefix_too(llama: Path) -> None:
    """Blocks that decode steps filled are known like those of a prompt."""
    engine = load(llama, block_size=4)
    (request,) = requests(PROMPTS[-1:], GREEDY)
    (answer,) = run(engine, [request])
    longer = replace(request, prompt=(*request.prompt, *answer, 5, 6, 7))
    assert cached_tokens(engine, longer) == (90 + 19) // 4 * 4
    warm = drain(engine)[request.request_id]
    assert [warm] == run(load(llama, enable_prefix_caching=False), [longer])


@samplings
@pytest.mark.parametrize("done", [1, 7, 19])
def test_a_retry_says_the_rest(
    engine: TorchEngine, alone: Answers, sampling: Sampling, done: int
) -> None:
    """What was produced before counts as answer: for length, min_tokens and noise."""
    retries = [
        replace(request, generated=tuple(answer[:done]))
        for request, answer in zip(requests(PROMPTS, sampling), alone[sampling], strict=True)
    ]
    assert run(engine, retries) == [answer[done:] for answer in alone[sampling]]


def test_whatever_is_released_leaves_nothing(engine: TorchEngine) -> None:
    """Waiting, half a prompt in, and in the middle of an answer."""
    for steps in range(25):
        for request in requests(PROMPTS, GREEDY):
            engine.generate(request)
        over = set[RequestId]()
        for _ in range(steps):
            engine.schedule()
            over |= {one.request_id for one in engine.step().sampled if one.finish}
        for request in requests(PROMPTS):
            if request.request_id not in over:
                engine.release(request.request_id)
        assert_idle(engine)


def cached_tokens(engine: TorchEngine, request: Request) -> int:
    """Hand it in and let it be admitted; its first step is still to come."""
    engine.generate(request)
    (admitted,) = engine.schedule()
    return admitted.cached_tokens
