"""What a prefill node says of a prompt, and when: its ticket neither too early nor too late."""

from collections.abc import Sequence

import pytest

from api.generator import (
    Event,
    FailedEvent,
    Leg,
    PooledEvent,
    StageEvent,
    TicketEvent,
    TokenEvent,
)
from engine.request import Request, RequestId, Sampling
from kv_transfer.local.connector import LocalSink, LocalSource, layout_of
from kv_transfer.ticket import LEASE_S
from kv_transfer.wire import (
    Abandon,
    Confirmed,
    Drive,
    FromSink,
    Gone,
    Hello,
    Leave,
    Look,
    Settle,
)
from tests.fakes.engine import FakeEngine
from tests.fakes.node import node_loop

HOLD = Leg(hold=True, keep_open=True)
BLOCKS, LENGTH, CHUNK = 8, 20, 8  # 5 blocks, 3 chunks


class Noted(LocalSource):
    """Remembers which blocks were put on offer."""

    extended: list[list[int]]

    def extend(self, ticket_id: str, blocks: Sequence[int]) -> None:
        self.extended.append(list(blocks))
        super().extend(ticket_id, blocks)


class Prefill:
    """One node, and all that it has said."""

    def __init__(self) -> None:
        self.engine = FakeEngine(blocks=BLOCKS, chunk=CHUNK)
        regions = self.engine.kv_regions
        self.now = 0.0
        self.source = Noted("p", ("p", 1), regions, "fake", lambda: self.now)
        self.source.extended = []
        sink = LocalSink({}, regions, "fake", float)
        self.loop = node_loop(self.engine, self.source, sink, lambda: self.now)
        self.said: list[tuple[RequestId, Event | PooledEvent]] = []

    def submit(self, name: str, length: int = LENGTH) -> None:
        request = Request(RequestId(name), (ord(name),) * length, Sampling(2))
        self.said += self.loop.submit(request, HOLD, 0.0)

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.said += self.loop.prepare()
            self.said += self.loop.run()

    def names(self, kind: type[Event]) -> list[RequestId]:
        return [rid for rid, event in self.said if isinstance(event, kind)]


def test_a_ticket_leaves_before_anything_is_computed() -> None:
    """So decode has its blocks, and pulls each chunk while the next is computed."""
    prefill = Prefill()
    prefill.submit("a")
    prefill.said += prefill.loop.prepare()
    assert prefill.names(TicketEvent) == ["a"]
    assert prefill.engine.computed == 0


@pytest.mark.parametrize("turns", [1, 3, 9])
def test_a_prompt_that_queues_has_no_ticket_yet(turns: int) -> None:
    """Decode's blocks would lie idle: there is room for one prompt, and it is on offer."""
    prefill = Prefill()
    prefill.submit("a")
    prefill.submit("b")
    prefill.turn(turns)
    assert prefill.names(TicketEvent) == ["a"]
    prefill.loop.abort(RequestId("a"))
    prefill.turn(4)
    assert prefill.names(TicketEvent) == ["a", "b"]
    assert prefill.names(TokenEvent)[-1] == "b"


def test_each_block_is_put_on_offer_once_and_only_when_it_is_final() -> None:
    """Two chunks of two blocks, then half a block: it is final as the prompt ends there."""
    prefill = Prefill()
    prefill.submit("a", length=18)
    prefill.turn(3)
    blocks = list(prefill.engine.blocks(RequestId("a")))
    assert prefill.source.extended == [blocks[:2], blocks[2:4], blocks[4:]]
    assert len(blocks) == 5


def test_a_prompt_nobody_came_for_is_to_be_tried_again() -> None:
    prefill = Prefill()
    prefill.submit("a")
    prefill.turn(4)
    prefill.now = 1e6
    prefill.turn()
    (failed,) = (event for _, event in prefill.said if isinstance(event, FailedEvent))
    assert (failed.retryable, failed.by_peer) == (True, True)
    assert prefill.engine.load.free_blocks == BLOCKS


TICKET = "p/a"
LATE: list[FromSink] = [
    Look(TICKET, "p", 0),
    Settle(TICKET),
    Abandon(TICKET),
    Leave(TICKET),
    Drive(),
    Look("another", "p", 0),
    Settle("another"),
    Abandon("another"),
    Leave("another"),
]


@pytest.mark.parametrize("came", [False, True])
@pytest.mark.parametrize("withdrawn", [False, True])
def test_whatever_is_said_of_a_lease_that_is_over_harms_nobody(
    *, came: bool, withdrawn: bool
) -> None:
    """vllm#25562: the report of a reader that came too late ended the engine."""
    prefill, sink = Prefill(), b"sink"
    prefill.submit("a")
    prefill.turn(4)
    prefill.source.deliver(sink, Hello("fake", layout_of(prefill.engine.kv_regions)))
    if came:
        prefill.source.deliver(sink, Look(TICKET, "p", 0))
    if withdrawn:
        prefill.loop.abort(RequestId("a"))
    prefill.now = LEASE_S
    prefill.turn()
    assert prefill.engine.load.free_blocks == BLOCKS
    prefill.submit("b")
    prefill.turn(4)
    ended = len(prefill.said)
    for message in LATE * 2:
        for answer in prefill.source.deliver(sink, message):
            assert isinstance(answer, Gone)
        prefill.loop.abort(RequestId("a"))
        prefill.turn()
    assert prefill.said[ended:] == []
    assert prefill.names(TokenEvent) == ["a", "b"]
    prefill.source.deliver(sink, Look("p/b", "p", 0))
    (confirmed,) = prefill.source.deliver(sink, Settle("p/b"))
    assert isinstance(confirmed, Confirmed)
    prefill.turn()
    assert prefill.engine.load.free_blocks == BLOCKS


def test_a_prompt_may_be_taken_back_twice_before_its_turn() -> None:
    """And nothing is kept of it, nor of one that is over."""
    prefill = Prefill()
    prefill.submit("a")
    prefill.submit("b")
    prefill.turn()
    for name in "bbaa":
        prefill.loop.abort(RequestId(name))
    prefill.turn()
    assert prefill.engine.load.free_blocks == BLOCKS
    assert not prefill.loop.prefill._prompts


def test_what_a_prompt_waited_is_no_part_of_what_its_prefill_took() -> None:
    prefill = Prefill()
    prefill.submit("a")
    prefill.now = 2.0
    prefill.turn()
    prefill.now = 5.0
    prefill.turn(3)
    stages = [event for _, event in prefill.said if isinstance(event, StageEvent)]
    assert stages == [StageEvent("queue", 2.0, at_s=2.0), StageEvent("prefill", 3.0, at_s=5.0)]
