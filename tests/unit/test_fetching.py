"""What a prefill leg gets from another node's cache, and what it does where that fails."""

from collections import deque

import pytest

from api.generator import (
    Event,
    FailedEvent,
    Leg,
    PooledEvent,
    PromptEvent,
)
from decode_node.fetching import LEFT_ALONE_S, MOST_WAIT_S
from engine.request import Request, RequestId, Sampling
from kv_transfer.api import Arrived, FetchedPrefix, Loan, Sealed, TransferStats
from kv_transfer.ledger.known_sources import Address
from kv_transfer.local.connector import LocalSink, LocalSource
from kv_transfer.local.faults import Fault, On
from kv_transfer.ticket import CacheHint
from kv_transfer.wire import SILENCE_S
from node.loop import NodeLoop
from tests.fakes.engine import FakeEngine
from tests.fakes.node import node_loop

PROMPT = tuple(range(90))  # 22 full blocks, and 2 tokens
SHORT = tuple(range(40))
CACHE = CacheHint("d", "d", 1, "fake")
HOLD = Leg(hold=True, keep_open=True, cache=CACHE)


class Two:
    """`theirs` has PROMPT in its cache; `ours` gets legs that say so."""

    def __init__(self, blocks: int = 64, known: tuple[int, ...] = PROMPT) -> None:
        self.now = 0.0
        self.theirs, self.ours = FakeEngine(), FakeEngine(blocks=blocks)
        self.network: dict[Address, LocalSource] = {}
        self.source, _, self.lending = self._node("d", self.theirs)
        _, self.sink, self.node = self._node("p", self.ours)
        self.fetcher = self.node.decode.fetcher
        if known:
            self.theirs.generate(Request(RequestId("before"), known, Sampling(1)))
            while self.theirs.turn().num_tokens:
                pass

    def _node(self, name: str, engine: FakeEngine) -> tuple[LocalSource, LocalSink, NodeLoop]:
        regions, at = engine.kv_regions, (name, 1)
        source = self.network[at] = LocalSource(name, at, regions, "fake", self.clock)
        sink = LocalSink(self.network, regions, "fake", self.clock, name=name.encode())
        return source, sink, node_loop(engine, source, sink, self.clock)

    def clock(self) -> float:
        return self.now

    def submit(
        self, name: str = "r", tokens: tuple[int, ...] = PROMPT, leg: Leg = HOLD
    ) -> None:
        assert not self.node.submit(
            Request(RequestId(name), tokens, Sampling(1)), leg, self.now
        )

    def turn(self, times: int = 1, *, answering: bool = True) -> list[tuple[str, Event]]:
        news = list[tuple[RequestId, Event | PooledEvent]]()
        for _ in range(times):
            if answering:
                self.lending.prepare()
                self.lending.run()
            news += [*self.node.prepare(), *self.node.run()]
        return [(name, event) for name, event in news if not isinstance(event, PooledEvent)]

    def used(self) -> tuple[int, int]:
        loads = self.theirs.load, self.ours.load
        return tuple(one.total_blocks - one.free_blocks for one in loads)  # type: ignore[return-value]

    def all_back(self) -> None:
        self.now += SILENCE_S
        self.turn(3)
        assert self.used() == (0, 0)
        self.ours.sequences.check_idle()
        self.theirs.sequences.check_idle()
        self.ours.kv.check()


def admitted(news: list[tuple[str, Event]]) -> list[PromptEvent]:
    return [event for _, event in news if isinstance(event, PromptEvent)]


def test_what_is_fetched_is_not_computed() -> None:
    two = Two()
    two.submit()
    assert admitted(two.turn(12)) == [PromptEvent(88, fetched_tokens=88)]
    assert two.ours.computed == 2
    two.node.abort(RequestId("r"))
    two.all_back()


def test_blocks_are_taken_only_once_it_is_known_how_many_come() -> None:
    two = Two()
    two.submit()
    two.turn(3, answering=False)
    assert two.used() == (0, 0)
    two.node.abort(RequestId("r"))
    two.all_back()


def test_no_more_blocks_are_taken_than_there_are_to_fetch() -> None:
    two = Two(known=PROMPT[:70])
    two.submit()
    while not any(two.used()):
        two.turn()
    two.turn()
    assert two.used() == (17, 17)
    assert admitted(two.turn(12)) == [PromptEvent(68, fetched_tokens=68)]


def test_a_short_prompt_does_not_ask() -> None:
    two = Two()
    two.submit(tokens=SHORT)
    assert admitted(two.turn()) == [PromptEvent(0)]


def test_a_prompt_that_is_known_here_does_not_ask() -> None:
    two = Two()
    two.ours.generate(Request(RequestId("before"), PROMPT, Sampling(1)))
    while two.ours.turn().num_tokens:
        pass
    two.submit()
    assert admitted(two.turn()) == [PromptEvent(88)]


@pytest.mark.parametrize("turns", range(14))
def test_an_abort_in_any_state_lets_go_of_both_sides(turns: int) -> None:
    two = Two()
    two.submit()
    two.turn(turns)
    two.node.abort(RequestId("r"))
    two.all_back()
    assert not two.node.has_waiting_legs


def test_an_abort_under_a_read_that_hangs_lets_go_of_what_was_lent_at_once() -> None:
    two = Two()
    two.sink.faults = deque([On("read", Fault.DROP)])
    two.submit()
    two.turn(6)
    assert two.used() == (22, 22)
    two.node.abort(RequestId("r"))
    two.turn(2)
    assert two.used() == (0, 22)  # the read may still write to ours


@pytest.mark.parametrize("turns", range(14))
def test_a_reader_that_dies_in_any_state_keeps_nothing(turns: int) -> None:
    two = Two()
    two.submit()
    two.turn(turns)
    for _ in range(2):
        two.lending.prepare()
        two.lending.run()
        two.now += SILENCE_S
    two.lending.prepare()
    assert two.used()[0] == 0


def test_one_that_does_not_answer_is_waited_for_no_longer_than_this() -> None:
    two = Two()
    two.submit()
    two.turn(3, answering=False)
    two.now += MOST_WAIT_S
    assert admitted(two.turn(answering=False)) == [PromptEvent(0)]
    two.submit("again", tuple(range(200, 290)))
    assert admitted(two.turn(8, answering=False)) == [PromptEvent(0)]  # it is left alone
    for name in ("r", "again"):
        two.node.abort(RequestId(name))
    two.now += LEFT_ALONE_S
    two.submit("later", (5, *PROMPT))
    assert two.node.has_waiting_legs
    two.node.abort(RequestId("later"))
    two.turn(4)
    two.all_back()


def test_the_wait_is_half_of_what_computing_takes() -> None:
    two = Two()
    two.fetcher.record_pace(88, 0.88)
    two.submit()
    two.now += 0.43
    assert not admitted(two.turn(answering=False))
    two.now += 0.02
    assert admitted(two.turn(answering=False))


def test_an_answer_that_comes_too_late_is_sent_back() -> None:
    two = Two()
    two.submit()
    two.turn(2, answering=False)
    two.now += MOST_WAIT_S
    assert admitted(two.turn(answering=False)) == [PromptEvent(0)]
    two.turn(3)
    assert two.used()[0] == 0
    two.node.abort(RequestId("r"))
    two.all_back()


def test_a_pull_that_fails_publishes_nothing() -> None:
    two = Two()
    two.sink.faults = deque([On("settle", Fault.CUT)])
    two.submit()
    assert admitted(two.turn(16)) == [PromptEvent(0)]
    two.node.abort(RequestId("r"))
    two.all_back()


def test_what_is_not_what_was_asked_for_is_not_believed() -> None:
    two = Two()
    two.submit()
    while not two.used()[1]:
        two.turn()
    (ticket_id,) = two.fetcher._pulling
    two.fetcher.handle_arrival(
        Arrived(ticket_id, Sealed(88, 0, b"other tokens"), stats=TransferStats(9, 0.0))
    )
    assert two.fetcher.collect() == [FetchedPrefix("r", 0, 0, 0.0, 9)]
    assert two.ours.known(two.ours.keys(Request(RequestId("x"), PROMPT))) == 0


def test_more_than_was_asked_for_is_refused() -> None:
    two = Two()
    two.submit()
    two.turn(2)
    ticket = two.source.offer("odd")  # of a source that cannot count
    two.sink.book.pending_loans.answered.append(Loan("fetch-r", ticket, 23))
    two.fetcher._asked.setdefault("fetch-r", two.fetcher._waiting[RequestId("r")])
    assert [done.num_tokens for done in two.fetcher.collect()] == [0]


def test_without_room_the_prompt_is_not_held_up() -> None:
    two = Two(blocks=30)
    two.ours.generate(Request(RequestId("long"), tuple(range(500, 560)), Sampling(30)))
    two.turn(5)
    two.submit()
    news = two.turn(8)
    assert not two.node.has_waiting_legs  # it waits for room as any other prompt
    assert not [event for _, event in news if isinstance(event, FailedEvent)]
    two.node.abort(RequestId("r"))
    two.ours.release(RequestId("long"))
    two.all_back()


@pytest.mark.parametrize("names", [("d", "other"), ("d of yesterday", "fake")])
def test_another_model_or_another_start_has_nothing(names: tuple[str, str]) -> None:
    two, (engine_id, fingerprint) = Two(), names
    two.submit(leg=Leg(hold=True, cache=CacheHint(engine_id, "d", 1, fingerprint)))
    assert two.node.has_waiting_legs == (fingerprint == "fake")  # else it is not even asked
    assert admitted(two.turn(4)) == [PromptEvent(0)]


def test_a_source_that_takes_its_blocks_back_is_no_failure_of_the_prompt() -> None:
    two = Two()
    two.submit()
    while not two.used()[1]:
        two.turn()
    two.source.close()
    news = two.turn(8)
    assert admitted(news) == [PromptEvent(0)]
    two.node.abort(RequestId("r"))
    two.all_back()


def test_a_loan_never_costs_a_request_its_room() -> None:
    """Blocks that are kept free for answers are not lent: nobody gives way for a cache."""
    two = Two()
    theirs = two.theirs
    theirs.sequences.watermark.share = 1.0
    theirs.generate(Request(RequestId("long"), (1, 2, 3), Sampling(200)))
    theirs.turn()
    keys = theirs.keys(Request(RequestId("x"), PROMPT))
    spare = theirs.load.free_blocks - theirs.sequences.kept_free
    assert len(theirs.lend("loan", keys)) == max(0, spare) < len(keys)


def test_a_node_that_has_nothing_is_asked_again() -> None:
    two = Two(known=())
    two.submit()
    assert admitted(two.turn(4)) == [PromptEvent(0)]
    assert not two.fetcher._left_alone  # it answered
