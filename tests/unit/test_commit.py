"""What a batch is counted as, what it leaves in the cache, and what gets drafts in it."""

import pytest

from engine.request import PoolingRequest, Request, RequestId, Sampling
from tests.fakes.drafter import Oracle
from tests.fakes.engine import FakeEngine


def test_an_answer_that_is_computed_again_does_not_count_as_prompt() -> None:
    engine = FakeEngine(blocks=12, block_size=12, chunk=32, seats=1)
    engine.generate(Request(RequestId("gives way"), (1, 2, 3), Sampling(6), priority=1))
    for _ in range(4):
        engine.turn()
    engine.generate(Request(RequestId("urgent"), (4, 5), Sampling(1)))
    while engine.sequences.known:
        engine.turn()
    assert engine.load.preemptions == 1
    assert engine.load.prompt_tokens == 3 + 2 + 3


def test_drafts_count_as_tokens_of_a_batch() -> None:
    engine = FakeEngine()
    engine.scheduler.drafter = Oracle(lambda: 3, lambda: 3)
    engine.generate(Request(RequestId("r"), (1, 2), Sampling(9)))
    assert [engine.turn().num_tokens for _ in range(2)] == [2, 1 + 3]


@pytest.mark.parametrize("way", ["parks", "pooled"])
def test_what_has_no_answer_here_gets_no_drafts(way: str) -> None:
    """Its last chunk is one token, as that of an answer is."""
    engine, name, prompt = FakeEngine(chunk=4), RequestId("r"), (1,) * 5
    engine.scheduler.drafter = Oracle(lambda: 3, lambda: 3)
    if way == "parks":
        engine.prefill(Request(name, prompt, Sampling(9)))
    else:
        engine.embed(PoolingRequest(name, prompt))
    assert [engine.turn().num_tokens for _ in range(2)] == [4, 1]


def test_a_prompt_that_was_fetched_is_cached_even_if_its_first_token_is_the_last() -> None:
    engine, prompt = FakeEngine(block_size=4), tuple(range(9))
    fetched = Request(RequestId("fetched"), prompt, Sampling(1))
    assert engine.reserve(fetched)
    engine.fetch(fetched.request_id)
    assert [one.finish for one in engine.resume(fetched.request_id, [7])] == ["length"]
    engine.generate(Request(RequestId("again"), prompt, Sampling(1)))
    assert [one.cached_tokens for one in engine.schedule()] == [8]


def test_a_prompt_that_was_pooled_is_cached() -> None:
    engine, prompt = FakeEngine(block_size=4), tuple(range(9))
    engine.embed(PoolingRequest(RequestId("pooled"), prompt))
    engine.turn()
    engine.generate(Request(RequestId("again"), prompt, Sampling(1)))
    assert [one.cached_tokens for one in engine.schedule()] == [8]
