"""One turn of an engine process: what it reads, what it says, and how long it waits then."""

import math
import os
import select
from collections.abc import Iterator, Sequence
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
import zmq

from api.generator import Leg, TicketEvent
from engine.cache_events import BlocksStored
from engine.request import Request, RequestId, Sampling
from engine.scheduling.cache_log import CacheLog
from kv_transfer.thread.threaded import TransferThreadDied
from node.engine_process import WAITING_LEG_MS
from node.ipc import (
    HEARTBEAT_S,
    Abort,
    DeclineLeg,
    EngineOutputs,
    SetNiceness,
    SubmitLeg,
    ToEngine,
    decode_from_engine,
    encode,
)
from tests.unit.test_sweep import PATIENCE_S, Node, Rig
from tests.unit.test_sweep import rig as rig

ASKED = Request(RequestId("r~1"), (1, 2, 3, 4, 5), Sampling(2))
BEAT_MS = round(HEARTBEAT_S * 1000)


@pytest.fixture
def node(rig: Rig) -> Iterator[Node]:
    """Whose transfer thread goes on."""
    rig.mover.free.set()
    rig.sums.free.set()
    with closing(Node.around(rig.connector)) as one:
        yield one


def turn(node: Node, *messages: ToEngine) -> Sequence[EngineOutputs]:
    """What the door hears of a turn in which these messages are read."""
    for message in messages:
        node.heard.send(encode(message))
        assert node.server.door.poll(round(PATIENCE_S * 1000))
    node.server.turn()
    heard = list[EngineOutputs]()
    while node.heard.poll(0, zmq.POLLIN):
        said = decode_from_engine(node.heard.recv())
        assert isinstance(said, EngineOutputs)
        heard.append(said)
    return heard


def test_a_ticket_leaves_before_its_prompt_is_run(node: Node) -> None:
    engine: Any = node.server.loop.engine
    engine.kv.log = CacheLog(4)
    first, second, *_ = turn(node, SubmitLeg(ASKED, Leg(hold=True), 0.0))
    assert isinstance(first.events[0][1], TicketEvent)
    assert first.load.running == 1
    assert first.cache_events == ()
    assert isinstance(second.cache_events[0], BlocksStored)
    assert second.load.free_blocks < second.load.total_blocks


def test_a_turn_without_events_says_something_at_intervals(node: Node) -> None:
    (beat,) = turn(node)
    assert beat.events == []
    assert node.server.last_sent_at
    node.server.last_sent_at = math.inf
    assert turn(node) == []


def test_what_is_aborted_runs_no_more(node: Node) -> None:
    turn(node, SubmitLeg(ASKED, Leg(), 0.0), Abort(ASKED.request_id))
    assert node.server.loop.load.running == 0


def test_who_will_not_fetch_is_passed_on(node: Node) -> None:
    declined = list[Leg]()
    loop: Any = SimpleNamespace(decline=declined.append)
    real, node.server.loop = node.server.loop, loop
    node.heard.send(encode(DeclineLeg(Leg(hold=True))))
    assert node.server.door.poll(round(PATIENCE_S * 1000))
    node.server._read()
    node.server.loop = real
    assert declined == [Leg(hold=True)]


def test_all_ranks_give_way_alike(node: Node) -> None:
    told = list[int]()
    node.server.ranks = SimpleNamespace(set_niceness=told.append)  # type: ignore[assignment]
    node.server.door_niceness = os.nice(0)
    turn(node, SetNiceness(0))
    assert told == [os.nice(0)]


def test_news_of_transfers_wakes_it_once(node: Node, rig: Rig) -> None:
    first, *_ = turn(node, SubmitLeg(ASKED, Leg(hold=True), 0.0))
    ((_, said), *_) = first.events
    assert isinstance(said, TicketEvent)
    rig.connector.source.withdraw(said.ticket.ticket_id)
    descriptor = rig.connector.service.news_fd
    assert select.select([descriptor], [], [], PATIENCE_S)[0]
    turn(node)
    assert not select.select([descriptor], [], [], 0)[0]
    load = node.server.loop.load
    assert load.free_blocks == load.total_blocks


def test_a_full_node_that_runs_nothing_is_woken_by_blocks_that_come_back(
    node: Node, rig: Rig
) -> None:
    """TensorRT-LLM#12313: it got no turn before there was new work, and had no room for any."""
    tokens = node.server.loop.load.total_blocks * 4 - 8  # all blocks but two
    first, second = (Request(RequestId(f"r{n}"), (n,) * tokens) for n in (1, 2))
    leg = Leg(hold=True)
    turn(node, SubmitLeg(first, leg, 0.0), SubmitLeg(second, leg, 0.0))
    while not node.server.loop.idle:
        turn(node)
    assert (node.server.loop.load.running, node.server.loop.load.waiting) == (0, 1)
    rig.mover.free.clear()
    rig.mover.hangs.clear()
    rig.hang()  # so the abort is not carried out within the turn that reads it
    outputs = turn(node, Abort(first.request_id))
    assert not any(one.events for one in outputs)
    rig.mover.free.set()
    assert select.select([rig.connector.service.news_fd], [], [], PATIENCE_S)[0]
    events = [event for one in turn(node) for event in one.events]
    tickets = [rid for rid, event in events if isinstance(event, TicketEvent)]
    assert tickets == [second.request_id]


def test_it_does_not_outlive_its_transfer_thread(node: Node, rig: Rig) -> None:
    rig.mover.failure = RuntimeError("broken")
    rig.connector.service.post(lambda: None)
    assert select.select([rig.connector.service.news_fd], [], [], PATIENCE_S)[0]
    with pytest.raises(TransferThreadDied, match="broken"):
        node.server.turn()


def test_it_waits_for_news_only_while_there_is_nothing_to_compute(node: Node) -> None:
    turn(node)
    assert node.server.patience_ms == BEAT_MS
    turn(node, SubmitLeg(ASKED, Leg(), 0.0))
    assert node.server.patience_ms == 0
    turn(node, Abort(ASKED.request_id))
    assert node.server.patience_ms == BEAT_MS
    node.server.loop.engine.compiling.add(ASKED.request_id)  # type: ignore[attr-defined]
    turn(node, SubmitLeg(ASKED, Leg(), 0.0))
    assert node.server.patience_ms == WAITING_LEG_MS
