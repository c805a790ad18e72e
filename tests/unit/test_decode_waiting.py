"""How jobs wait for room on a decode node: the urgent first, and not for ever."""

import pytest

from api.generator import FailedEvent, Leg, StageEvent, TicketEvent, TokenEvent
from decode_node.worker import NO_ROOM, NO_ROOM_S, STANDSTILL_S
from engine.request import Request, RequestId, Sampling
from kv_transfer.ledger.known_sources import Address
from kv_transfer.local.connector import LocalSink, LocalSource
from kv_transfer.ticket import KvTicket
from kv_transfer.wire import BEAT_S
from node.loop import LegEvent, NodeLoop
from tests.fakes.engine import FakeEngine
from tests.fakes.model import alone
from tests.fakes.node import node_loop


class Nodes:
    """Some, each of which runs prompts for the others and decodes for them."""

    def __init__(self, count: int, **limits: int) -> None:
        self.now = 0.0
        self.engines = [
            FakeEngine(**{"blocks": 8, "block_size": 1, **limits}) for _ in range(count)
        ]
        sources: dict[Address, LocalSource] = {}
        for number, engine in enumerate(self.engines):
            here = ("node", number)
            sources[here] = LocalSource(
                str(number), here, engine.kv_regions, "fake", self.clock
            )
        self.sources = list(sources.values())
        self.loops, self.sinks = list[NodeLoop](), list[LocalSink]()
        for engine, source in zip(self.engines, self.sources, strict=True):
            name, regions = source.engine_id.encode(), engine.kv_regions
            sink = LocalSink(sources, regions, "fake", self.clock, name=name)
            self.sinks.append(sink)
            self.loops.append(node_loop(engine, source, sink, self.clock))
        self.news: list[LegEvent] = []

    def clock(self) -> float:
        return self.now

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            for loop in self.loops:
                self.news += [*loop.prepare(), *loop.run()]

    def wait(self, seconds: float) -> None:
        """Long steps of time would look like silence."""
        until = self.now + seconds
        while self.now < until:
            self.now += BEAT_S
            self.tick()

    def park(self, node: int, request: Request) -> KvTicket:
        self.loops[node].submit(request, Leg(hold=True), self.now)
        self.tick(3)
        tickets = [e.ticket for name, e in self.news if isinstance(e, TicketEvent)]
        return tickets[-1]

    def said(self, name: str) -> list[int]:
        return [
            token
            for rid, event in self.news
            if rid == name and isinstance(event, TokenEvent)
            for token in event.tokens
        ]

    def failures(self) -> list[tuple[RequestId, FailedEvent]]:
        return [(rid, event) for rid, event in self.news if isinstance(event, FailedEvent)]


def ask(name: str, length: int, priority: int = 0) -> Request:
    return Request(RequestId(name), (ord(name[0]),) * length, Sampling(2), priority=priority)


def test_two_nodes_full_of_each_others_prompts_do_not_wait_for_ever() -> None:
    nodes = Nodes(2)
    prompts = [ask("here", 6), ask("there", 6)]
    tickets = [nodes.park(number, prompt) for number, prompt in enumerate(prompts)]
    for number, prompt in enumerate(prompts):
        job = Request(RequestId(f"{prompt.request_id} decoded"), prompt.prompt, Sampling(2))
        nodes.loops[1 - number].submit(job, Leg(ticket=tickets[number]), nodes.now)
    nodes.wait(STANDSTILL_S)
    assert not nodes.failures()
    nodes.wait(1)
    (failed, event), (withdrawn, _) = nodes.failures()
    assert (failed, withdrawn) == ("there decoded", "there")  # and its prompt with it
    assert event.retryable
    assert not event.by_peer
    assert nodes.said("here decoded") == alone(ask("here", 6))
    for engine in nodes.engines:
        assert engine.load.free_blocks == engine.load.total_blocks


def test_a_job_waits_as_long_as_something_runs() -> None:
    nodes = Nodes(2, seats=1, blocks=80)
    ticket = nodes.park(0, ask("prompt", 3))
    nodes.loops[1].submit(Request(RequestId("long"), (1,), Sampling(60)), Leg(), nodes.now)
    nodes.tick()
    nodes.loops[1].submit(ask("p decoded", 3), Leg(ticket=ticket), nodes.now)
    nodes.wait(2 * STANDSTILL_S)
    assert not nodes.failures()
    nodes.tick(40)
    assert len(nodes.said("p decoded")) == 2


def test_jobs_at_a_standstill_fail_one_by_one() -> None:
    nodes = Nodes(3, blocks=16)
    tickets = [nodes.park(0, ask(name, 5)) for name in "ab"]
    nodes.park(1, ask("full", 14))
    for name, ticket in zip(["a decoded", "b decoded"], tickets, strict=True):
        nodes.loops[1].submit(ask(name, 5), Leg(ticket=ticket), nodes.now)
    nodes.wait(STANDSTILL_S + 1)
    failed = [name for name, _ in nodes.failures()]
    assert [name for name in failed if "decoded" in name] == ["a decoded"]


def test_the_last_job_may_go_elsewhere_just_as_nothing_has_moved_for_long() -> None:
    nodes = Nodes(2, blocks=16)
    tickets = [nodes.park(0, ask(name, 5)) for name in "ab"]
    nodes.park(1, ask("full", 14))
    nodes.loops[1].submit(ask("a decoded", 5), Leg(ticket=tickets[0]), nodes.now)
    nodes.tick()
    nodes.wait(STANDSTILL_S - NO_ROOM_S)
    nodes.loops[1].submit(ask("b decoded", 5), elsewhere(tickets[1]), nodes.now)
    nodes.wait(NO_ROOM_S - BEAT_S)
    nodes.loops[1].abort(RequestId("a decoded"))
    nodes.wait(BEAT_S)
    assert nodes.failures()[-1] == ("b decoded", NO_ROOM)


def test_the_urgent_job_gets_its_blocks_first() -> None:
    nodes = Nodes(2, seats=1, blocks=32)
    names = ["first", "second", "urgent"]
    tickets = {name: nodes.park(0, ask(f"{name} prompt", 3)) for name in names}
    busy = Request(RequestId("busy"), (1,), Sampling(4), priority=-5)
    nodes.loops[1].submit(busy, Leg(), nodes.now)
    nodes.tick()
    for name in names:
        job = ask(name, 3, priority=-1 if name == "urgent" else 0)
        nodes.loops[1].submit(job, Leg(ticket=tickets[name]), nodes.now)
    nodes.tick(40)
    ended = [rid for rid, event in nodes.news if isinstance(event, TokenEvent) and event.finish]
    assert [rid for rid in ended if rid in names] == ["urgent", "first", "second"]


def test_a_job_has_not_waited_for_as_long_as_another_did() -> None:
    nodes = Nodes(2)
    tickets = [nodes.park(0, ask(name, 3)) for name in "ab"]
    nodes.park(1, ask("full", 8))
    nodes.loops[1].submit(ask("first", 3), Leg(ticket=tickets[0]), nodes.now)
    nodes.wait(STANDSTILL_S / 2)
    nodes.loops[1].abort(RequestId("first"))
    nodes.wait(STANDSTILL_S)
    nodes.loops[1].submit(ask("second", 3), Leg(ticket=tickets[1]), nodes.now)
    nodes.tick()
    assert "second" not in dict(nodes.failures())


def elsewhere(ticket: KvTicket, waited_s: float = 0.0) -> Leg:
    return Leg(ticket=ticket, keep_open=True, elsewhere=True, waited_s=waited_s)


def test_a_job_that_has_elsewhere_to_go_is_told_and_its_kv_stays_on_offer() -> None:
    nodes = Nodes(3)
    ticket = nodes.park(0, ask("prompt", 6))
    nodes.park(1, ask("full", 6))
    nodes.loops[1].submit(ask("p decoded", 6), elsewhere(ticket), nodes.now)
    nodes.wait(NO_ROOM_S - BEAT_S)
    assert not nodes.failures()
    nodes.wait(2 * BEAT_S)
    assert nodes.failures() == [("p decoded", NO_ROOM)]
    (waited,) = [e for _, e in nodes.news if isinstance(e, StageEvent) and e.stage == "no_room"]
    assert waited.seconds == NO_ROOM_S
    assert nodes.sinks[1].book.num_open == 0
    nodes.wait(STANDSTILL_S)  # nobody asks meanwhile
    nodes.loops[2].submit(ask("p again", 6), elsewhere(ticket), nodes.now)
    nodes.tick(10)
    assert nodes.said("p again") == alone(ask("prompt", 6))


def test_what_a_job_has_waited_elsewhere_counts_here() -> None:
    nodes = Nodes(2, seats=1, blocks=32)
    names = ["first", "moved"]
    tickets = {name: nodes.park(0, ask(f"{name} prompt", 3)) for name in names}
    nodes.loops[1].submit(Request(RequestId("busy"), (1,), Sampling(4)), Leg(), nodes.now)
    nodes.tick()
    nodes.loops[1].submit(ask("first", 3), elsewhere(tickets["first"]), nodes.now)
    nodes.loops[1].submit(ask("moved", 3), elsewhere(tickets["moved"], 2.0), nodes.now)
    nodes.tick(40)
    ended = [rid for rid, event in nodes.news if isinstance(event, TokenEvent) and event.finish]
    assert [rid for rid in ended if rid in names] == ["moved", "first"]


@pytest.mark.parametrize("state", ["waiting", "compiling", "pulling"])
def test_who_keeps_its_prefill_leg_open_takes_nothing_with_it(state: str) -> None:
    """Its other leg ends the offer; should it be asked for elsewhere, it is there."""
    nodes = Nodes(3)
    if state == "compiling":
        nodes.engines[1].compiling.add(RequestId("p decoded"))
    ticket = nodes.park(0, ask("prompt", 6))
    if state == "waiting":
        nodes.park(1, ask("full", 6))
    nodes.loops[1].submit(ask("p decoded", 6), elsewhere(ticket), nodes.now)
    nodes.tick()
    assert nodes.loops[1].decode.num_pulling == (state == "pulling")
    nodes.loops[1].abort(RequestId("p decoded"))
    nodes.loops[2].submit(ask("p again", 6), elsewhere(ticket), nodes.now)
    nodes.tick(10)
    assert nodes.said("p again") == alone(ask("prompt", 6))
    assert not nodes.loops[2].decode.load_failures
