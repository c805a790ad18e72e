"""When a decode node gives a ticket up: it does not fetch the KV, or the last job has left."""

import pytest
from msgspec.structs import replace

from api.generator import Leg, PromptEvent, TokenEvent
from engine.request import Logprob, Request, RequestId, Sampling
from kv_transfer.api import Outcome
from tests.fakes.decoding import Pair, rid


@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize("leg", [Leg(recompute=True), Leg(hold=True)])
def test_kv_that_a_leg_does_not_fetch_is_not_kept_for_it(leg: Leg, *, compiling: bool) -> None:
    pair, asked = Pair(), Request(rid, (1, 2), Sampling(1, prompt_logprobs=0))
    ticket = pair.source.offer("r")
    pair.seal(ticket, asked)
    pair.engine.compiling |= {rid} if compiling else set()
    pair.node.submit(asked, replace(leg, ticket=ticket), pair.now)
    pair.engine.compiling.clear()
    news = [event for _, event in pair.tick(4)]
    assert pair.outcomes() == [Outcome.WITHDRAWN]
    assert PromptEvent(0, ((Logprob(2, 0.0, 1),),)) in news
    assert not pair.node.load_failures


@pytest.mark.parametrize("keep_open", [False, True])
def test_a_second_job_for_a_ticket_leaves_the_first_alone(*, keep_open: bool) -> None:
    """A router sends a request twice, then takes back the copy, which waits for a seat."""
    pair, asked = Pair(seats=1), Request(rid, (1, 2), Sampling(2))
    ticket = pair.source.offer("r")
    pair.submit(asked, ticket)
    copy = Request(RequestId("copy"), (1, 2), Sampling(2))
    pair.submit(copy, ticket, keep_open=keep_open)
    pair.tick(2)
    pair.node.abort(RequestId("copy"))
    pair.seal(ticket, asked)
    news = pair.tick(8)
    assert len([event for _, event in news if isinstance(event, TokenEvent)]) == 2
    assert pair.outcomes() == [Outcome.DELIVERED]


def test_a_ticket_is_held_on_when_the_job_that_pulled_it_has_left() -> None:
    """A router takes back the first of two copies, and the second waits on for a seat."""
    pair, asked = Pair(seats=1), Request(rid, (1, 2), Sampling(2))
    ticket = pair.source.offer("r")
    pair.submit(asked, ticket, keep_open=True)
    seated = Request(RequestId("seated"), (3, 4), priority=-1)
    pair.tick()
    pair.submit(seated, pair.source.offer("seated"))
    pair.submit(Request(RequestId("copy"), (1, 2), Sampling(2)), ticket, keep_open=True)
    pair.tick()
    pair.seal(ticket, asked)
    pair.node.abort(rid)
    pair.wait(50)
    pair.node.abort(seated.request_id)
    tokens = [e for name, e in pair.tick(8) if name == "copy" and isinstance(e, TokenEvent)]
    assert len(tokens) == 2
    assert pair.node.load_failures == {}


@pytest.mark.parametrize("pulling", [False, True])
@pytest.mark.parametrize("keep_open", [False, True])
def test_a_ticket_of_two_jobs_outlives_the_first(*, keep_open: bool, pulling: bool) -> None:
    """Both wait for room, or the first has a seat; its client goes, and the second fetches."""
    pair, asked = Pair(seats=1), Request(rid, (1, 2), Sampling(2))
    seated, ticket = Request(RequestId("seated"), (3, 4), priority=-1), pair.source.offer("r")
    if not pulling:
        pair.submit(seated, pair.source.offer("seated"))
        pair.tick()
    pair.submit(asked, ticket, keep_open=keep_open)
    pair.tick()
    pair.submit(Request(RequestId("copy"), (1, 2), Sampling(2)), ticket)
    pair.tick()
    pair.node.abort(rid)
    pair.seal(ticket, asked)
    news = pair.tick(8)
    outcomes = pair.outcomes()
    for _ in range(50):
        pair.now += 1.0
        news += pair.tick()
        outcomes += pair.outcomes()
    pair.node.abort(seated.request_id)
    news += pair.tick(8)
    tokens = [e for name, e in news if name == "copy" and isinstance(e, TokenEvent)]
    assert len(tokens) == 2
    assert pair.node.load_failures == {}
    assert (outcomes + pair.outcomes())[-1] == Outcome.DELIVERED


def test_a_ticket_that_was_held_for_two_jobs_is_held_again_for_the_second() -> None:
    """The first had its turn and pulled, and left; then there is no room for the second."""
    pair, asked = Pair(seats=1), Request(rid, (1, 2), Sampling(2))
    first, second = (Request(RequestId(name), (3, 4), priority=-1) for name in "ab")
    ticket = pair.source.offer("r")
    pair.submit(first, pair.source.offer("a"))
    pair.tick()
    for name in (rid, RequestId("copy")):
        pair.submit(Request(name, (1, 2), Sampling(2)), ticket)
    pair.tick()
    pair.node.abort(first.request_id)
    pair.tick(2)
    assert pair.node.decode.num_pulling == 1
    pair.submit(second, pair.source.offer("b"))
    pair.node.abort(rid)
    pair.tick()
    assert pair.outcomes() == [Outcome.WITHDRAWN]  # of the first that had the seat
    pair.seal(ticket, asked)
    pair.wait(50)
    pair.node.abort(second.request_id)
    tokens = [e for name, e in pair.tick(8) if name == "copy" and isinstance(e, TokenEvent)]
    assert len(tokens) == 2
    assert pair.node.load_failures == {}


def test_a_ticket_of_two_jobs_is_given_up_with_the_second() -> None:
    pair = Pair(seats=1)
    pair.submit(Request(RequestId("seated"), (3, 4)), pair.source.offer("seated"))
    ticket, names = pair.source.offer("r"), [rid, RequestId("copy")]
    for name in names:
        pair.tick()
        pair.submit(Request(name, (1, 2)), ticket)
    for name in names:
        pair.tick()
        assert pair.outcomes() == []
        pair.node.abort(name)
    assert pair.outcomes() == [Outcome.WITHDRAWN]


@pytest.mark.parametrize("last", ["copy", "refused"])
def test_a_ticket_is_given_up_with_the_last_job_while_the_pull_of_the_first_goes_on(
    last: str,
) -> None:
    """The pull that was aborted ends when its read does, and nobody takes what it brings."""
    pair, asked = Pair(seats=1), Request(rid, (1, 2), Sampling(2))
    ticket = pair.source.offer("r")
    pair.submit(asked, ticket)
    pair.tick()
    copy = Request(RequestId("copy"), (1, 2), Sampling(2))
    pair.submit(copy, ticket, keep_open=last != "copy")
    pair.tick()
    pair.seal(ticket, asked)
    pair.node.abort(rid)
    assert pair.node.decode.num_pulling == 1
    assert pair.outcomes() == []
    pair.node.abort(copy.request_id)
    if last == "refused":
        pair.node.decline(Leg(ticket=ticket))
    assert pair.outcomes() == [Outcome.WITHDRAWN]
    assert pair.tick(4) == []


def test_a_ticket_of_two_jobs_whose_grammar_is_compiled_outlives_the_first() -> None:
    pair, asked = Pair(), Request(rid, (1, 2), Sampling(2))
    ticket, names = pair.source.offer("r"), [rid, RequestId("copy")]
    pair.engine.compiling.update(names)
    for name in names:
        pair.submit(Request(name, (1, 2), Sampling(2)), ticket)
    pair.node.abort(rid)
    pair.engine.compiling.clear()
    pair.seal(ticket, asked)
    news = pair.tick(8)
    assert len([event for _, event in news if isinstance(event, TokenEvent)]) == 2
    assert pair.node.load_failures == {}
    assert pair.outcomes() == [Outcome.DELIVERED]
