"""Legs with grammars: they wait for nobody but themselves, and fail alone."""

from api.generator import Event, FailedEvent, Leg, PooledEvent, TicketEvent, TokenEvent
from engine.request import (
    FinishReason,
    Grammar,
    Request,
    RequestId,
    Sampling,
    first_token_digest,
)
from kv_transfer.local.connector import LocalSink, LocalSource
from node.loop import NodeLoop
from tests.fakes.engine import FakeEngine
from tests.fakes.node import node_loop

RID, OTHER = RequestId("r"), RequestId("other")
News = list[tuple[RequestId, Event | PooledEvent]]
PLAIN, STOPPED = Sampling(), Sampling(stop_token_ids=(7,), ignore_eos=True)
ASKED = Request(RID, (1, 2, 3), Sampling(max_tokens=3))
BESIDE = Request(OTHER, (4, 5, 6), Sampling(max_tokens=6))


class Node:
    def __init__(self) -> None:
        self.engine = FakeEngine()
        regions = self.engine.kv_regions
        source = LocalSource("e", ("h", 1), regions, "fake", float)
        sink = LocalSink({}, regions, "fake", float)
        self.loop: NodeLoop = node_loop(self.engine, source, sink, float)

    def turns(self, count: int = 12) -> News:
        news: News = []
        for _ in range(count):
            news += [*self.loop.prepare(), *self.loop.run()]
        return news

    @property
    def used_blocks(self) -> int:
        return self.engine.load.total_blocks - self.engine.load.free_blocks


def ends(news: News, rid: RequestId) -> list[FinishReason | None]:
    return [
        event.finish for name, event in news if name == rid and isinstance(event, TokenEvent)
    ]


def test_a_leg_waits_until_its_grammar_is_compiled_and_others_do_not() -> None:
    node = Node()
    node.engine.compiling.add(RID)
    assert node.loop.submit(ASKED, Leg(), 0.0) == []
    node.loop.submit(BESIDE, Leg(), 0.0)
    news = node.turns()
    assert ends(news, OTHER)[-1] is FinishReason.LENGTH
    assert [name for name, _ in news if name == RID] == []
    assert node.loop.has_waiting_legs
    assert node.loop.load.waiting == 1
    node.engine.compiling.clear()
    assert ends(node.turns(), RID)[-1] is FinishReason.LENGTH
    assert not node.loop.has_waiting_legs


def test_a_leg_may_leave_before_its_grammar_is_compiled() -> None:
    for leg in (Leg(), Leg(hold=True)):
        node = Node()
        node.engine.compiling.add(RID)
        node.loop.submit(ASKED, leg, 0.0)
        node.loop.abort(RID)
        node.engine.compiling.clear()
        assert node.turns() == []
        assert node.used_blocks == 0


def test_an_answer_that_cannot_go_on_fails_alone_and_for_good() -> None:
    node = Node()
    node.engine.failing.add(RID)
    node.loop.submit(ASKED, Leg(), 0.0)
    node.loop.submit(BESIDE, Leg(), 0.0)
    news = node.turns()
    failed = [event for name, event in news if isinstance(event, FailedEvent)]
    named = [(event.retryable, event.param) for event in failed]
    assert named == [(False, "structured_outputs")]
    assert ends(news, RID) == []
    assert ends(news, OTHER)[-1] is FinishReason.LENGTH
    assert node.used_blocks == 0


def test_a_prompt_whose_answer_cannot_begin_gives_its_blocks_back() -> None:
    node = Node()
    node.engine.failing.add(RID)
    node.loop.submit(ASKED, Leg(hold=True), 0.0)
    news = [event for _, event in node.turns()]
    assert isinstance(news[0], TicketEvent)
    assert [event.retryable for event in news if isinstance(event, FailedEvent)] == [False]
    assert not any(isinstance(event, TokenEvent) for event in news)
    assert node.used_blocks == 0


def test_a_first_token_counts_only_under_the_same_grammar_and_ends() -> None:
    """Drivers of other makes rewrite what a prefill leg is asked."""
    samplings = [
        Sampling(),
        Sampling(grammar=Grammar("regex", "a")),
        Sampling(grammar=Grammar("choice", "a")),
        Sampling(grammar=Grammar("regex", "a"), stop_token_ids=(7,)),
        Sampling(grammar=Grammar("regex", "a"), ignore_eos=True),
    ]
    digests = {first_token_digest(Request(RID, (1,), sampling)) for sampling in samplings}
    assert len(digests) == len(samplings)
    plain = {first_token_digest(Request(RID, (1,), one)) for one in (PLAIN, STOPPED)}
    assert len(plain) == 1
