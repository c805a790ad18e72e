"""What a decode node tells of a job from its coming to its end, and what it leaves alone."""

from collections import deque

import pytest

from api.generator import Event, FailedEvent, Leg, PromptEvent, StageEvent, TokenEvent
from decode_node.worker import NO_ROOM
from engine.request import FinishReason, Request, RequestId, Sampling
from kv_transfer.api import Outcome
from kv_transfer.local.faults import Fault, On
from kv_transfer.ticket import KvTicket
from tests.fakes.decoding import Pair, rid, sealed_for

LONG = (1, 2, 3, 4, 5)
COPY = RequestId("copy")


def offered(pair: Pair, asked: Request, first: int) -> KvTicket:
    """Two blocks from `first` on, for five tokens."""
    ticket = pair.source.offer(asked.request_id)
    pair.source.extend(ticket.ticket_id, [first, first + 1])
    pair.source.seal(ticket.ticket_id, sealed_for(asked, 33))
    return ticket


def events(pair: Pair, times: int) -> list[Event]:
    """With the stages."""
    news = list[Event]()
    for _ in range(times):
        pair.now += 0.125
        for _, event in [*pair.node.prepare(), *pair.node.run()]:
            assert isinstance(event, PromptEvent | StageEvent | TokenEvent | FailedEvent)
            news.append(event)
    return news


def test_a_job_tells_its_stages_with_their_ends_then_its_tokens() -> None:
    pair, asked = Pair(), Request(rid, LONG, Sampling(2))
    ticket = offered(pair, asked, 0)
    pair.now = 3.0
    pair.node.submit(asked, Leg(ticket=ticket), 2.5)
    reserve, prompt, transfer, *rest = events(pair, 8)
    assert reserve == StageEvent("reserve", 0.625, at_s=0.625)
    assert prompt == PromptEvent(0)
    assert isinstance(transfer, StageEvent)
    assert (transfer.stage, transfer.num_bytes > 0) == ("transfer", True)
    assert transfer.at_s is not None
    assert transfer.at_s >= 0.75
    token, decode, last = rest
    assert token == TokenEvent((33,))
    assert isinstance(decode, StageEvent)
    assert decode.stage == "decode"
    assert decode.at_s == transfer.at_s + decode.seconds
    assert isinstance(last, TokenEvent)
    assert (len(last.tokens), last.finish) == (1, FinishReason.LENGTH)


def test_blocks_that_are_here_already_are_not_pulled_again() -> None:
    pair = Pair()
    for first, name in enumerate((rid, COPY)):
        asked = Request(name, LONG, Sampling(2))
        pair.submit(asked, offered(pair, asked, 2 * first))
        pair.tick(8)
        assert pair.sink.blocks_copied == 2 + first
    assert pair.node.load_failures == {}


def test_who_leaves_while_it_decodes_takes_its_blocks_and_its_tokens_with_it() -> None:
    pair, asked = Pair(), Request(rid, LONG, Sampling(20))
    pair.submit(asked, offered(pair, asked, 0))
    while not any(isinstance(event, TokenEvent) for _, event in pair.tick()):
        pass
    pair.node.abort(rid)
    assert pair.used_blocks == 0
    assert pair.tick(2) == []


@pytest.mark.parametrize("waiting", [False, True])
def test_a_leg_that_does_not_fetch_leaves_the_ticket_to_one_that_does(*, waiting: bool) -> None:
    pair, asked = Pair(seats=1), Request(rid, LONG, Sampling(2))
    seated = Request(RequestId("seated"), (3, 4), priority=-1)
    if waiting:
        pair.submit(seated, pair.source.offer("seated"))
        pair.tick()
    ticket = pair.source.offer(rid)
    pair.submit(asked, ticket)
    pair.tick()
    assert pair.node.decode.num_pulling == 1
    pair.node.submit(Request(COPY, LONG), Leg(ticket=ticket, recompute=True), pair.now)
    pair.node.decline(Leg(ticket=ticket))
    pair.tick()
    assert pair.outcomes() == []
    pair.node.abort(COPY)
    pair.node.abort(seated.request_id)
    pair.source.extend(ticket.ticket_id, [0, 1])
    pair.source.seal(ticket.ticket_id, sealed_for(asked))
    pair.tick(12)
    assert pair.outcomes()[-1] == Outcome.DELIVERED
    assert pair.node.load_failures == {}


def test_a_ticket_is_held_for_a_second_job_once_the_first_could_not_pull_it() -> None:
    """A read of the first failed; the second waits for a seat for longer than a lease."""
    pair, asked = Pair(seats=1), Request(rid, LONG, Sampling(20))
    pair.sink.faults = deque([On("read", Fault.CUT)])
    ticket = offered(pair, asked, 0)
    pair.submit(asked, ticket)
    pair.tick()
    pair.submit(Request(COPY, LONG, Sampling(2)), ticket)
    for _ in range(3):
        pair.tick()
    assert pair.node.load_failures == {"unreachable": 1}
    assert pair.node.decode.num_waiting == 1
    for _ in range(50):
        pair.now += 1.0
        assert pair.node.decode.collect() == []
        assert pair.outcomes() == []
    pair.node.abort(rid)
    said = [name for name, event in pair.tick(12) if isinstance(event, TokenEvent)]
    assert said == [COPY, COPY]
    assert pair.node.load_failures == {"unreachable": 1}


def test_a_node_without_room_says_that_others_may_have_it() -> None:
    """The proxy asks another node for the KV, and does not think this one sick."""
    assert (NO_ROOM.retryable, NO_ROOM.parked, NO_ROOM.no_room) == (True, True, True)
    assert not NO_ROOM.by_peer
