"""One request's broken KV is nobody else's: neither beside it nor in its blocks after it."""

import ctypes
from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.request import Request, RequestId, Sampling
from engine.torch_engine import TorchEngine
from tests.fakes.driver import assert_idle, drain, load, park, prompt, requests, run

GREEDY = Sampling(max_tokens=20, temperature=0, ignore_eos=True)
NOT_A_NUMBER = 0xFF


def poison(engine: TorchEngine, length: int) -> RequestId:
    """A prompt whose KV came as noise: a transfer broke, or half precision overflowed."""
    request = Request(RequestId("poisoned"), prompt(length), GREEDY)
    reserved = engine.reserve(request)
    assert reserved is not None
    (region,) = engine.kv_regions
    for block in reserved.blocks:
        ctypes.memset(region.at(block), NOT_A_NUMBER, region.block_bytes)
    engine.resume(request.request_id, [1])
    return request.request_id


def test_neighbours_do_not_notice(llama: Path) -> None:
    asked = requests([prompt(length) for length in (3, 20, 40, 90)], GREEDY)
    expected = run(load(llama), asked)
    engine = load(llama)
    poisoned = poison(engine, 130)
    for request in asked:
        engine.generate(request)
    engine.schedule()
    answers = drain(engine)
    answers.pop(poisoned)
    assert list(answers.values()) == expected
    assert_idle(engine)


@pytest.mark.parametrize("chunk", [7, 512])
def test_whoever_gets_the_blocks_does_not_notice(llama: Path, chunk: int) -> None:
    asked = requests([prompt(length) for length in (1, 3, 20, 40, 90)], GREEDY)
    expected = run(load(llama), asked)
    one_sequence = 512 // 16 * load(llama).kv_regions[0].block_bytes
    for length in (120, 400):
        engine = load(
            llama,
            max_num_batched_tokens=chunk,
            kv_cache_memory_bytes=one_sequence,
            enable_prefix_caching=False,
        )
        engine.release(poison(engine, length))
        for request, answer in zip(asked, expected, strict=True):
            assert run(engine, [replace(request)]) == [answer]


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_whoever_fetches_into_half_a_block_does_not_notice(llama: Path, kernels: str) -> None:
    """From a node of smaller blocks comes no more than the prompt's tokens."""
    asked = Request(RequestId("asked"), prompt(20), GREEDY)
    (expected,) = run(load(llama), [asked])
    source, sink = load(llama), load(llama, cpu_kernels=kernels, enable_prefix_caching=False)
    sink.release(poison(sink, 490))
    first = park(source, [asked])[asked.request_id]
    reserved = sink.reserve(asked)
    assert reserved is not None
    pairs = zip(source.blocks(asked.request_id), reserved.blocks, strict=True)
    for (theirs, ours), tokens in zip(pairs, (16, 4), strict=True):
        here, there = source.memory.blocks[theirs], sink.memory.blocks[ours]
        there[..., :tokens, :] = here[..., :tokens, :]
    sink.resume(asked.request_id, [first])
    sink.schedule()
    assert [first, *drain(sink)[asked.request_id]] == expected
