"""Where the transfer thread hangs, leases end and aborts are done, and health tells of it."""

import select
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import zmq
from quart import Quart

from discovery.registration import Registration, Role
from engine.grammars.checking import GrammarChecker
from kv_transfer.api import Outcome, Sealed, Settled
from kv_transfer.blocks.mapping import BlockMapping
from kv_transfer.checking import CheckLevel
from kv_transfer.errors import PeerUnreachable
from kv_transfer.identity import Identity
from kv_transfer.layout import KvLayout
from kv_transfer.movers.mover import ReadEnd
from kv_transfer.side_channel.poller import Poller
from kv_transfer.side_channel.server import SideChannelServer
from kv_transfer.thread.books import STANDSTILL_S
from kv_transfer.thread.service import OPEN_TURN_S, TransferService
from kv_transfer.thread.threaded import Connector, TransferThreadDied
from kv_transfer.ticket import LEASE_S, KvTicket
from kv_transfer.wire import SILENCE_S
from node.engine_client import SWEEP_LATE_S, EngineClient
from node.engine_process import EngineServer
from node.ipc import NO_LOAD, EngineOutputs, EngineReady, decode_from_engine
from node.legs import LegFinder
from node.metrics import NodeMetrics
from node.routes import NodeRoutes
from tests.fakes.engine import FakeEngine
from tests.fakes.mover import FakeMover
from tests.fakes.node import node_loop

HERE, PATIENCE_S = "127.0.0.1", 10.0
LAYOUT = KvLayout("bytes", 1, 1, ())


@dataclass
class HangingMover(FakeMover):
    """Its `poll` comes back when the test lets it; `hangs` is set while it does not."""

    failure: Exception | None = None
    free: threading.Event = field(default_factory=threading.Event)
    hangs: threading.Event = field(default_factory=threading.Event)

    def poll(self) -> Sequence[ReadEnd]:
        self.hangs.set()
        assert self.free.wait(PATIENCE_S)
        if self.failure is not None:
            raise self.failure
        return []


@dataclass
class HangingChecksums:
    """It is as long before there are any, as where a rank does not answer."""

    blocks_at_once: int = 1
    free: threading.Event = field(default_factory=threading.Event)
    hangs: threading.Event = field(default_factory=threading.Event)

    def of(self, blocks: Sequence[int], level: CheckLevel) -> list[int]:
        self.hangs.set()
        assert self.free.wait(PATIENCE_S)
        return [0 for _ in blocks]

    def of_pieces(
        self, cut: BlockMapping, slots: Sequence[Sequence[int]], level: CheckLevel
    ) -> list[int]:
        return self.of([at for (at, *_) in slots], level)


@dataclass
class Rig:
    """A connector with its threads, on a clock that the test moves."""

    mover: HangingMover
    sums: HangingChecksums
    connector: Connector
    now: list[float]

    def hang(self) -> None:
        """Until `mover.free` is set."""
        self.connector.service.post(lambda: None)
        assert self.mover.hangs.wait(PATIENCE_S)

    def news(self) -> Sequence[Settled]:
        """What settles next."""
        readable, _, _ = select.select([self.connector.service.news_fd], [], [], PATIENCE_S)
        assert readable
        self.connector.service.clear_news()
        return self.connector.source.poll()


@pytest.fixture
def rig() -> Iterator[Rig]:
    mover, now, reception = HangingMover(), [0.0], SideChannelServer.bind(HERE, 0, Poller())
    sums, level = HangingChecksums(), CheckLevel.FULL
    identity = Identity("engine", HERE, reception.port, "fake", LAYOUT)
    service = TransferService(identity, [], mover, reception, level, sums, clock=lambda: now[0])
    connector = Connector.over(service)
    connector.start()
    yield Rig(mover, sums, connector, now)
    mover.free.set()
    sums.free.set()
    connector.stop()
    service.close()  # if its thread has not lived to do it


class TestWhileTheTransferThreadHangs:
    def test_what_is_taken_back_settles(self, rig: Rig) -> None:
        """TensorRT-LLM#12313: cleanup waits for no new work."""
        rig.hang()
        ticket = rig.connector.source.offer("r")
        rig.connector.source.withdraw(ticket.ticket_id)
        rig.now[0] += SILENCE_S
        assert rig.news() == [Settled(ticket.ticket_id, Outcome.WITHDRAWN)]

    def test_a_lease_that_nobody_came_for_ends(self, rig: Rig) -> None:
        ticket = rig.connector.source.offer("r")
        rig.hang()
        rig.connector.source.seal(ticket.ticket_id, Sealed(1, 2))
        other = rig.connector.source.offer("other")
        rig.connector.source.withdraw(other.ticket_id)
        rig.now[0] += SILENCE_S
        rig.news()  # the sweep has come by: it is sealed
        rig.now[0] += LEASE_S
        assert rig.news() == [Settled(ticket.ticket_id, Outcome.EXPIRED)]

    def test_a_pull_that_reads_nothing_fails(self, rig: Rig) -> None:
        rig.hang()
        rig.connector.sink.pull(KvTicket("e/r", "e", HERE, 9, "fake"), [0])
        rig.now[0] += SILENCE_S
        while not rig.connector.service.pulls.num_open:  # the sweep takes it in
            assert not rig.connector.service.queues.arrived
        rig.now[0] += SILENCE_S
        rig.news()
        (arrived,) = rig.connector.sink.poll()
        assert isinstance(arrived.error, PeerUnreachable)

    def test_checksums_that_do_not_come_hold_up_no_abort(self, rig: Rig) -> None:
        """They are of other ranks, too, and one may be stuck."""
        rig.mover.free.set()
        ticket = rig.connector.source.offer("r")
        rig.connector.source.extend(ticket.ticket_id, [0])
        assert rig.sums.hangs.wait(PATIENCE_S)
        rig.connector.source.withdraw(ticket.ticket_id)
        rig.now[0] += SILENCE_S
        assert rig.news() == [Settled(ticket.ticket_id, Outcome.WITHDRAWN)]
        rig.sums.free.set()
        rig.mover.hangs.clear()
        rig.hang()
        rig.connector.check()  # what comes too late is of no offer, and ends nothing

    def test_a_turn_in_time_is_left_alone(self, rig: Rig) -> None:
        rig.hang()
        ticket = rig.connector.source.offer("r")
        rig.connector.source.withdraw(ticket.ticket_id)
        rig.now[0] += SILENCE_S - 0.01
        rig.connector.service.sweep()
        assert not rig.connector.source.poll()


def test_an_engine_that_asks_for_news_does_not_stand_still(rig: Rig) -> None:
    for now in (1.0, STANDSTILL_S):
        rig.now[0] = now
        rig.connector.source.poll()
        assert rig.connector.service.books.engine_seen_at == now


def test_a_thread_that_waits_is_not_late(rig: Rig) -> None:
    rig.mover.free.set()
    rig.hang()
    rig.mover.hangs.clear()
    assert rig.connector.service.late_s == 0.0
    ticket = rig.connector.source.offer("r")
    assert rig.mover.hangs.wait(PATIENCE_S)
    rig.now[0] += OPEN_TURN_S
    assert rig.connector.service.late_s <= OPEN_TURN_S
    rig.connector.source.withdraw(ticket.ticket_id)
    rig.news()


def test_a_dead_thread_ends_the_engine_loop(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.mover.failure = RuntimeError("broken")
    rig.mover.free.set()
    rig.hang()
    select.select([rig.connector.service.news_fd], [], [], PATIENCE_S)
    with pytest.raises(TransferThreadDied, match="broken"):
        rig.connector.check()
    assert "the transfer thread died" in caplog.text


async def test_health_is_503_while_the_transfer_thread_hangs(rig: Rig) -> None:
    """TensorRT-LLM#13713: a wedged node does not say that it is well."""
    with closing(Node.around(rig.connector)) as node:
        assert await node.health() == (200, 0.0)
        rig.hang()
        assert await node.health() == (200, 0.0)
        rig.now[0] += SWEEP_LATE_S
        assert await node.health() == (503, SWEEP_LATE_S)
        assert not node.client.alive  # so it is announced no more
        rig.mover.hangs.clear()
        rig.mover.free.set()
        rig.hang()
        while rig.connector.service.late_s:
            rig.connector.service.post(lambda: None)
        assert await node.health() == (200, 0.0)


@dataclass
class Node:
    """The engine's loop over a fake engine, and the door that hears its news."""

    server: EngineServer
    heard: "zmq.Socket[bytes]"
    client: EngineClient
    metrics: NodeMetrics

    @classmethod
    def around(cls, connector: Connector) -> "Node":
        engine, context = FakeEngine(), zmq.Context[zmq.Socket[bytes]].instance()
        clock: Any = connector.service.clock
        source: Any = connector.source
        sink: Any = connector.sink
        ours, theirs = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        ours.setsockopt(zmq.LINGER, 0)
        ours.bind("inproc://door")
        theirs.connect("inproc://door")
        server = EngineServer(node_loop(engine, source, sink, clock), connector, theirs)
        process: Any = SimpleNamespace(returncode=None)
        nobody: Any = None
        ready = EngineReady("f", LAYOUT, 512, 21001, NO_LOAD)
        metrics = NodeMetrics()
        client = EngineClient(process, nobody, ready, metrics.record)
        return cls(server, ours, client, metrics)

    def close(self) -> None:
        self.heard.close(linger=0)
        self.server.door.close(linger=0)

    async def health(self) -> tuple[int, float]:
        """One turn of the loop; what the door says then, and the metric."""
        self.server.last_sent_at = 0.0
        self.server.turn()
        news = decode_from_engine(self.heard.recv())
        assert isinstance(news, EngineOutputs)
        self.client._apply(news)
        app, here = Quart("node"), Registration(Role.DECODE, "h:1", "h:2")
        door = NodeRoutes(
            self.client, self.metrics, lambda: here, LegFinder("h:2"), GrammarChecker()
        )
        app.register_blueprint(door.blueprint())
        said = await app.test_client().get("/health")
        late = self.metrics.registry.get_sample_value("pdserve_kv_sweep_late_seconds")
        assert late is not None
        return said.status_code, late
