"""What a batch is counted as, what it leaves in the cache, and what gets drafts in it."""

from collections.abc import Iterable

import pytest

from engine.request import PoolingRequest, Request, RequestId, Sampling
from engine.scheduling.sequence import Sequence
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


def test_drafts_count_as_tokens_of_a_batch_and_right_ones_are_not_computed_again() -> None:
    engine, oracle = FakeEngine(), Oracle(lambda: 3, lambda: 1)
    engine.scheduler.drafter = oracle
    engine.generate(Request(RequestId("r"), (1, 2), Sampling(9, logprobs=0)))
    turns = [engine.turn() for _ in range(3)]
    assert [one.num_tokens for one in turns] == [2, 1 + 3, 1 + 3]
    told = [one for turn in turns for one in turn.sampled]
    assert [(len(one.tokens), len(one.logprobs)) for one in told] == [(1, 1), (2, 2), (2, 2)]
    assert oracle.judged == [(3, 1)] * 2
    load = engine.load
    assert (load.drafts, load.draft_tokens, load.accepted_tokens) == (2, 6, 2)


@pytest.mark.parametrize(("most", "drafts"), [(None, 6), (2, 6), (1, 0)])
def test_where_more_decode_than_may_draft_there_are_no_drafts(
    most: int | None, drafts: int
) -> None:
    engine = FakeEngine()
    engine.scheduler.drafter = Oracle(lambda: 3, lambda: 3)
    engine.scheduler.most_drafting = most
    for name in "ab":
        engine.generate(Request(RequestId(name), (1, 2), Sampling(9)))
    engine.turn()
    engine.schedule()
    assert sum(len(chunk.drafts) for chunk in engine.scheduler.batch) == drafts
    assert engine.scheduler.drafts_pause is not bool(drafts)


def test_a_batch_gets_no_drafts_while_the_next_is_launched() -> None:
    engine = FakeEngine()
    engine.scheduler.drafter = Oracle(lambda: 3, lambda: 3)
    engine.generate(Request(RequestId("r"), (1, 2), Sampling(9)))
    engine.turn()
    engine.scheduler.next_is_launched = True
    assert engine.turn().num_tokens == 1
    engine.scheduler.next_is_launched = False
    assert engine.turn().num_tokens == 1 + 3


@pytest.mark.parametrize("drafts", [1, 3])
def test_drafts_reach_to_the_end_of_an_answer_and_need_no_free_block_there(drafts: int) -> None:
    engine = FakeEngine(blocks=1, block_size=8)
    engine.scheduler.drafter = Oracle(lambda: 4, lambda: 4)
    engine.generate(Request(RequestId("r"), (1, 2), Sampling(2 + drafts)))
    assert [engine.turn().num_tokens for _ in range(2)] == [2, 1 + drafts]
    engine.sequences.check_idle()


class Resting(Oracle):
    """Wants to draft for nobody, for now."""

    def rests(self, seqs: Iterable[Sequence]) -> bool:
        return True


@pytest.mark.parametrize("drafter", [None, Resting(lambda: 0, lambda: 0)])
def test_without_a_drafter_and_while_it_rests_drafts_pause(drafter: Oracle | None) -> None:
    engine = FakeEngine()
    engine.scheduler.drafter = drafter
    assert engine.scheduler.drafts_pause


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


def test_tokens_that_a_prompt_is_resumed_with_are_all_told_but_none_behind_the_last() -> None:
    engine, ends = FakeEngine(), Sampling(9, stop_token_ids=(7,))
    fetched = Request(RequestId("fetched"), (1, 2, 3), ends)
    assert engine.reserve(fetched)
    engine.fetch(fetched.request_id)
    told = engine.resume(fetched.request_id, [5, 7, 6])
    assert [(one.tokens, one.stop_reason) for one in told] == [((5,), None), ((7,), 7)]
    assert [one.finish for one in told] == [None, "stop"]
    engine.sequences.check_idle()


def test_a_reservation_scores_no_prompt_and_reuses_what_is_cached() -> None:
    """Where the prompt is computed its tokens are scored."""
    engine, prompt = FakeEngine(block_size=4), tuple(range(9))
    engine.generate(Request(RequestId("before"), prompt, Sampling(1)))
    engine.turn()
    scored = Request(RequestId("scored"), prompt, Sampling(9, prompt_logprobs=0))
    reservation = engine.reserve(scored)
    assert reservation is not None
    assert reservation.filled == 8


def test_of_what_came_with_its_first_token_only_that_token_is_computed() -> None:
    engine, fetched = FakeEngine(), Request(RequestId("fetched"), (1, 2, 3), Sampling(9))
    assert engine.reserve(fetched)
    engine.fetch(fetched.request_id)
    engine.resume(fetched.request_id, [5])
    assert engine.turn().num_tokens == 1


def test_a_prompt_that_was_pooled_is_cached() -> None:
    engine, prompt = FakeEngine(block_size=4), tuple(range(9))
    engine.embed(PoolingRequest(RequestId("pooled"), prompt))
    engine.turn()
    engine.generate(Request(RequestId("again"), prompt, Sampling(1)))
    assert [one.cached_tokens for one in engine.schedule()] == [8]
