"""A prompt run on one engine and continued on another says what one engine alone says."""

from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from engine.errors import UnknownToken
from engine.request import FinishReason, Request, RequestId, Sampling
from engine.torch_engine import TorchEngine
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.driver import (
    assert_idle,
    copy_blocks,
    drain,
    eager,
    hand_over,
    load,
    move,
    park,
    prompt,
    requests,
    run,
)

PROMPTS = [prompt(length) for length in (1, 15, 16, 17, 47, 48, 100)]
GREEDY = Sampling(max_tokens=18, temperature=0, ignore_eos=True)
SEEDED = Sampling(max_tokens=18, temperature=1.1, top_p=0.9, seed=5, sample_index=2)
SHAPED = Sampling(
    max_tokens=18,
    temperature=0.9,
    repetition_penalty=1.3,
    frequency_penalty=0.5,
    logit_bias=((5, 3.0), (6, 3.0)),
    bad_words=((5, 6), (6, 5), (6, 6)),
)
KINDS = {"greedy": GREEDY, "seeded": SEEDED, "shaped": SHAPED}
samplings = pytest.mark.parametrize("sampling", KINDS.values(), ids=KINDS)
families = pytest.mark.parametrize("family", ["llama", "qwen3", "mistral"])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    shapes: dict[str, dict[str, Any]] = {"llama": {}, "qwen3": {}}
    shapes["mistral"] = {"sliding_window": 20}
    return {
        family: make_checkpoint(tmp_path_factory.mktemp(family), family, **shape)
        for family, shape in shapes.items()
    }


def busy(engine: TorchEngine) -> None:
    """Use some blocks and forget them, so that no block is where it was elsewhere."""
    run(engine, requests([prompt(70, seed=9)], GREEDY))


@families
@samplings
@pytest.mark.parametrize("sample_again", [False, True])
def test_split_is_one_engine(
    folders: dict[str, Path], family: str, sampling: Sampling, sample_again: bool
) -> None:
    asked = requests(PROMPTS, sampling)
    expected = run(load(folders[family]), asked)
    source, sink = load(folders[family], max_num_batched_tokens=32), load(folders[family])
    busy(sink)
    first = park(source, asked)
    assert source.load.free_blocks < source.load.total_blocks
    answers = dict[RequestId, list[int]]()
    for request in asked:
        name = request.request_id
        move(source, sink, request)
        booked = sink.resume(name, [] if sample_again else [first[name]])
        answers[name] = [token for one in booked for token in one.tokens]
    sink.schedule()
    for name, rest in drain(sink).items():
        answers[name] += rest
    assert list(answers.values()) == expected
    assert_idle(source)
    assert_idle(sink)


def test_blocks_are_final_when_they_are_told_filled(folders: dict[str, Path]) -> None:
    """Each is copied as soon as it is told, while the prompt runs on and another answers."""
    (request,) = requests(PROMPTS[-1:], GREEDY)
    (expected,) = run(load(folders["llama"]), [request])
    source, sink = load(folders["llama"], max_num_batched_tokens=20), load(folders["llama"])
    reserved = sink.reserve(request)
    assert reserved is not None
    source.generate(Request(RequestId("other"), prompt(30), GREEDY))
    source.prefill(request)
    told, first, copied = list[int](), list[int](), 0
    while not first:
        source.schedule()
        result = source.step()
        for filled in result.filled:
            told.append(filled.num_tokens)
            final = told[-1] // 16 if told[-1] < len(request.prompt) else len(reserved.blocks)
            pairs = list(zip(source.blocks(filled.request_id), reserved.blocks, strict=True))
            copy_blocks(source, sink, pairs[copied:final])
            copied = final
        first = [
            one.tokens[0] for one in result.sampled if one.request_id == request.request_id
        ]
    assert told == [10, 29, 48, 67, 86, 100]
    sink.resume(request.request_id, first)
    sink.schedule()
    assert first + drain(sink)[request.request_id] == expected


@pytest.mark.parametrize("told", [2, 3, 17])
@pytest.mark.parametrize("length", [31, 32, 33])
def test_several_tokens_are_taken_up_wherever_the_prompt_ends(
    folders: dict[str, Path], length: int, told: int
) -> None:
    """Its blocks have room for one of them, or for none."""
    (request,) = requests([prompt(length)], GREEDY)
    (expected,) = run(load(folders["llama"]), [request])
    source, sink = load(folders["llama"]), load(folders["llama"])
    park(source, [request])
    move(source, sink, request)
    sink.resume(request.request_id, expected[:told])
    sink.schedule()
    assert expected[:told] + drain(sink)[request.request_id] == expected
    assert_idle(sink)


@pytest.mark.parametrize("token", [-1, 384, 2**40])
def test_a_token_that_there_is_not_is_refused_and_nothing_is_changed(
    folders: dict[str, Path], token: int
) -> None:
    (request,) = requests(PROMPTS[-1:], GREEDY)
    (expected,) = run(load(folders["llama"]), [request])
    source, sink = load(folders["llama"]), load(folders["llama"])
    first = park(source, [request])[request.request_id]
    move(source, sink, request)
    with pytest.raises(UnknownToken):
        sink.resume(request.request_id, [token])
    sink.resume(request.request_id, [first])
    sink.schedule()
    assert [first, *drain(sink)[request.request_id]] == expected


def test_what_the_sink_knows_need_not_be_fetched(folders: dict[str, Path]) -> None:
    source, sink = load(folders["llama"]), load(folders["llama"])
    (request,) = requests(PROMPTS[-1:], GREEDY)
    expected = run(sink, [request])
    first = park(source, [request])[request.request_id]
    assert move(source, sink, request) == 6
    sink.resume(request.request_id, [first])
    sink.schedule()
    assert [[first, *drain(sink)[request.request_id]]] == expected
    assert_idle(sink)


def test_what_was_fetched_is_known_from_then_on(folders: dict[str, Path]) -> None:
    source, sink = load(folders["llama"]), load(folders["llama"])
    (request,) = requests(PROMPTS[-1:], GREEDY)
    first = park(source, [request])[request.request_id]
    move(source, sink, request)
    sink.resume(request.request_id, [first])
    sink.schedule()
    answer = [first, *drain(sink)[request.request_id]]
    sink.generate(request)
    (admitted,) = sink.schedule()
    assert admitted.cached_tokens == 96
    assert drain(sink)[request.request_id] == answer


def test_a_resumed_sequence_survives_preemption(folders: dict[str, Path]) -> None:
    asked = requests(PROMPTS, GREEDY)
    expected = run(load(folders["llama"]), asked)
    source = load(folders["llama"])
    block_bytes = source.kv_regions[0].block_bytes
    tight = load(folders["llama"], max_model_len=120, kv_cache_memory_bytes=20 * block_bytes)
    sink = eager(tight)
    assert hand_over(source, sink, asked) == expected
    assert sink.load.preemptions > 0
    assert_idle(sink)


def test_a_parked_prompt_is_not_disturbed_by_others(folders: dict[str, Path]) -> None:
    """They run, are preempted and share its prefix; its bytes stay as they were told."""
    source = load(folders["llama"])
    block_bytes = source.kv_regions[0].block_bytes
    tight = load(folders["llama"], max_model_len=120, kv_cache_memory_bytes=18 * block_bytes)
    parked, *others = requests([PROMPTS[-1], *PROMPTS], GREEDY)
    expected = run(load(folders["llama"]), others)
    (first,) = park(tight, [parked]).values()
    asked = [one for one in others if len(one.prompt) < 60]
    for request in asked:
        tight.generate(request)
    tight.schedule()
    answers = drain(tight)
    assert list(answers.values()) == expected[: len(asked)]
    assert tight.load.preemptions > 0
    sink = load(folders["llama"])
    move(tight, sink, parked)
    sink.resume(parked.request_id, [first])
    sink.schedule()
    assert [first, *drain(sink)[parked.request_id]] == expected[-1]
    assert_idle(tight)


def test_a_prompt_parks_even_if_its_token_is_its_last(folders: dict[str, Path]) -> None:
    engine = load(folders["llama"])
    (request,) = requests(PROMPTS[-1:], replace(GREEDY, max_tokens=1))
    engine.prefill(request)
    engine.schedule()
    (sampled,) = engine.step().sampled
    assert sampled.finish is FinishReason.LENGTH
    assert len(engine.blocks(request.request_id)) == 7
    engine.release(request.request_id)
    assert_idle(engine)


@pytest.mark.parametrize("sample_again", [False, True])
def test_what_was_fetched_is_not_computed_again(
    folders: dict[str, Path], sample_again: bool
) -> None:
    """One token: the new one, or the prompt's last to sample from."""
    engine = load(folders["llama"])
    (request,) = requests(PROMPTS[-1:], GREEDY)
    engine.reserve(request)
    engine.resume(request.request_id, [] if sample_again else [7])
    engine.schedule()
    assert engine.step().num_tokens == 1
    engine.release(request.request_id)
    assert_idle(engine)


def test_a_foreign_first_token_may_be_an_end_too_early(folders: dict[str, Path]) -> None:
    """Its maker did not know of min_tokens: the answer goes on."""
    engine = load(folders["llama"])
    sampling = replace(GREEDY, stop_token_ids=(7,), min_tokens=3)
    (request,) = requests(PROMPTS[-1:], sampling)
    engine.reserve(request)
    (sampled,) = engine.resume(request.request_id, [7])
    assert (sampled.tokens, sampled.finish) == ((7,), None)
    engine.release(request.request_id)
    assert_idle(engine)


def test_nothing_is_told_as_filled_before_the_device_has_written_it(
    folders: dict[str, Path],
) -> None:
    """A batch that samples nothing has no result to wait for, and others read its blocks."""
    engine = load(folders["llama"], max_num_batched_tokens=20)
    (request,) = requests(PROMPTS[-1:], GREEDY)
    engine.prefill(request)
    engine.schedule()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as calls:
        result = engine.step()
    assert result.filled
    assert not result.sampled
    assert "aten::item" in {call.key for call in calls.key_averages()}
    engine.release(request.request_id)


def test_a_refused_reservation_is_not_prepared_anew(folders: dict[str, Path]) -> None:
    """It is asked for again at every step, and its prompt may be long."""

    class Watched(Request, frozen=True):
        @property
        def tokens(self) -> tuple[int, ...]:
            reads.append(self.request_id)
            return super().tokens

    reads, engine = list[str](), load(folders["llama"], max_num_seqs=1)
    (first,) = requests(PROMPTS[-1:], GREEDY)
    assert engine.reserve(first)
    waits = Watched(RequestId("waits"), PROMPTS[-1], GREEDY)
    assert [engine.reserve(waits) for _ in range(5)] == [None] * 5
    looks = len(reads)
    assert engine.reserve(waits) is None
    assert len(reads) == looks
    engine.release(first.request_id)
    assert engine.reserve(waits)
    engine.release(waits.request_id)
    assert_idle(engine)
