"""A prompt that another job is pulling is waited for, if its blocks will be of use."""

from collections import deque
from dataclasses import replace

import pytest

from api.generator import FailedEvent, TokenEvent
from engine.request import Request, RequestId, Sampling
from kv_transfer.api import Outcome
from kv_transfer.local.faults import Delay, Fault, On
from tests.fakes.decoding import Pair

FIRST, SECOND = RequestId("first"), RequestId("second")
LONG, ONE_BLOCK = (1, 2, 3, 4, 5), (1, 2, 3, 4)


def asked(name: RequestId, prompt: tuple[int, ...] = LONG, salt: str = "") -> Request:
    return Request(name, prompt, Sampling(2), cache_salt=salt)


def test_a_job_waits_for_its_prompt_and_its_own_ticket_does_not_run_out() -> None:
    pair = Pair()
    tickets = [pair.source.offer(name) for name in (FIRST, SECOND)]
    for name, ticket in zip((FIRST, SECOND), tickets, strict=True):
        pair.submit(asked(name), ticket)
    pair.tick()
    assert (pair.node.decode.num_pulling, pair.node.decode.num_waiting) == (1, 1)
    pair.source.extend(tickets[1].ticket_id, [2])
    pair.seal(tickets[1], asked(SECOND))
    pair.wait(50)
    pair.source.extend(tickets[0].ticket_id, [4])
    pair.seal(tickets[0], asked(FIRST))
    said = [name for name, event in pair.tick(12) if isinstance(event, TokenEvent)]
    assert (said.count(FIRST), said.count(SECOND)) == (2, 2)
    assert pair.node.load_failures == {}


@pytest.mark.parametrize(
    ("prompt", "salt", "prefix_cache", "pulling"),
    [
        *((LONG, "a", True, 1), (LONG, "a", False, 2), (LONG, "b", True, 2)),
        (ONE_BLOCK, "a", True, 2),  # whose last token is computed again anyway
    ],
)
def test_nobody_waits_for_blocks_that_it_cannot_use(
    prompt: tuple[int, ...], salt: str, *, prefix_cache: bool, pulling: int
) -> None:
    pair = Pair()
    pair.engine.info = replace(pair.engine.info, prefix_cache=prefix_cache)
    pair.submit(asked(FIRST, prompt, "a"), pair.source.offer("one"))
    pair.submit(asked(SECOND, prompt, salt), pair.source.offer("two"))
    pair.tick()
    assert pair.node.decode.num_pulling == pulling


def test_nobody_waits_for_a_pull_that_was_given_up() -> None:
    """Its source is silent, its client left and asks again: what comes is of no use here."""
    pair = Pair()
    pair.sink.faults = deque([On("read", Fault.DROP)])
    tickets = [pair.source.offer(name) for name in (FIRST, SECOND)]
    for name, ticket in zip((FIRST, SECOND), tickets, strict=True):
        pair.source.extend(ticket.ticket_id, [2])
        pair.seal(ticket, asked(name))
    pair.submit(asked(FIRST), tickets[0])
    pair.tick(3)
    pair.node.abort(FIRST)
    pair.submit(asked(SECOND), tickets[1])
    said = [name for name, event in pair.tick(8) if isinstance(event, TokenEvent)]
    assert said == [SECOND, SECOND]
    assert pair.node.decode.num_pulling == 1  # its read may still write to its blocks
    assert pair.node.load_failures == {}


@pytest.mark.parametrize(
    ("prompt", "prefix_cache"), [(LONG, True), (LONG, False), (ONE_BLOCK, True)]
)
@pytest.mark.parametrize("recompute", [True, False])
def test_a_copy_waits_until_its_ticket_can_be_pulled_again(
    prompt: tuple[int, ...], *, prefix_cache: bool, recompute: bool
) -> None:
    """The first has left, and its read still writes; the KV stays on offer for the second,
    whether or not blocks are shared here.
    """
    pair = Pair(recompute=recompute)
    pair.engine.info = replace(pair.engine.info, prefix_cache=prefix_cache)
    pair.sink.faults = deque([On("read", Delay(0.5))])
    ticket = pair.source.offer(FIRST)
    if prompt is LONG:
        pair.source.extend(ticket.ticket_id, [2])
    pair.seal(ticket, asked(FIRST, prompt))
    pair.submit(asked(FIRST, prompt), ticket)
    pair.tick(3)
    pair.submit(asked(SECOND, prompt), ticket)
    pair.node.abort(FIRST)
    assert pair.tick(3) == []
    pair.now += 0.5
    said = [name for name, event in pair.tick(12) if isinstance(event, TokenEvent)]
    assert said == [SECOND, SECOND]
    assert pair.node.load_failures == {}
    assert pair.outcomes() == [Outcome.DELIVERED]


@pytest.mark.parametrize("prompt", [LONG, ONE_BLOCK])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_where_no_prompt_is_run_a_copy_waits_for_what_becomes_of_the_first(
    prompt: tuple[int, ...], *, prefix_cache: bool
) -> None:
    """A router asks again before the node has noticed that the first connection is gone."""
    pair = Pair(recompute=False)
    pair.engine.info = replace(pair.engine.info, prefix_cache=prefix_cache)
    ticket = pair.source.offer(FIRST)
    for name in (FIRST, SECOND):
        pair.submit(asked(name, prompt), ticket)
    assert pair.tick(3) == []
    pair.node.abort(FIRST)
    if prompt is LONG:
        pair.source.extend(ticket.ticket_id, [2])
    pair.seal(ticket, asked(SECOND, prompt))
    said = [name for name, event in pair.tick(12) if isinstance(event, TokenEvent)]
    assert said == [SECOND, SECOND]
    assert pair.node.load_failures == {}


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_where_no_prompt_is_run_only_one_job_gets_the_kv(*, prefix_cache: bool) -> None:
    pair = Pair(recompute=False)
    pair.engine.info = replace(pair.engine.info, prefix_cache=prefix_cache)
    ticket = pair.source.offer(FIRST)
    for name in (FIRST, SECOND):
        pair.submit(asked(name), ticket)
    pair.tick(3)
    pair.source.extend(ticket.ticket_id, [2])
    pair.seal(ticket, asked(FIRST))
    news = pair.tick(12)
    assert [name for name, event in news if isinstance(event, TokenEvent)] == [FIRST, FIRST]
    (failed,) = [event for _, event in news if isinstance(event, FailedEvent)]
    assert failed.retryable
    assert pair.node.load_failures == {"expired": 1}
    assert pair.used_blocks == 0
