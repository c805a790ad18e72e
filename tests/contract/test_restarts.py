"""A source that was started anew is another one, whatever its address is."""

from collections.abc import Callable, Sequence

import pytest
import zmq

from engine.api import KvRegion
from kv_transfer.api import Arrived, Sealed
from kv_transfer.errors import LeaseExpired, TransferError
from kv_transfer.identity import Identity
from kv_transfer.layout import KvLayout
from kv_transfer.mover import Mover
from kv_transfer.nixl import NixlMover
from kv_transfer.service import TransferService
from kv_transfer.sockets import bind_router
from kv_transfer.tcp import TcpMover
from kv_transfer.threaded import Connector
from kv_transfer.ticket import KvTicket
from tests.contract.rigs import BLOCK, BLOCKS, HERE, TURN_S, region

Start = Callable[[str, Sequence[KvRegion]], Mover]
TURNS = 1500


def tcp(_: str, regions: Sequence[KvRegion]) -> Mover:
    return TcpMover.start(HERE, HERE, regions)


class Nodes:
    """Services on a clock of ours, one after another at one port, and a sink."""

    def __init__(self, start: Start) -> None:
        self.start, self.now = start, 0.0
        self.context = zmq.Context[zmq.Socket[bytes]]()
        self.memory = list[bytearray]()
        self.living = list[TransferService]()
        self.sink = Connector.over(self.begin("sink", 0)).sink

    def begin(self, name: str, port: int) -> TransferService:
        memory = bytearray(BLOCK * BLOCKS)
        self.memory.append(memory)
        router, port = bind_router(self.context, HERE, port)
        identity = Identity(
            f"{name}-{id(memory)}", HERE, port, "same", KvLayout("b", 1, 1, (BLOCK,))
        )
        regions = [region(memory)]
        mover = self.start(identity.engine_id, regions)
        service = TransferService(
            identity, regions, mover, self.context, router, clock=lambda: self.now
        )
        self.living.append(service)
        return service

    def end(self, service: TransferService) -> None:
        """As a process that is killed: without a word."""
        self.living.remove(service)
        service.close()

    def arrive(self, count: int = 1) -> list[Arrived]:
        arrived = list[Arrived]()
        for _ in range(TURNS):
            for one in self.living:
                one.turn(TURN_S)
            arrived += self.sink.poll()
            if len(arrived) >= count:
                break
        return arrived

    def close(self) -> None:
        for one in self.living:
            one.end()
            one.close()
        self.context.term()


def offer(service: TransferService, name: str, block: int, *, sealed: bool = True) -> KvTicket:
    source = Connector.over(service).source
    ticket = source.offer(name)
    source.extend(ticket.ticket_id, [block])
    if sealed:
        source.seal(ticket.ticket_id, Sealed(1, 7))
    return ticket


@pytest.mark.parametrize("start", [NixlMover.start, tcp], ids=["nixl", "tcp"])
def test_a_source_that_comes_back_at_its_port_is_read_anew(start: Start) -> None:
    """No stale agent is asked, and nothing fails for long (vllm#49238). Time stands still here:
    what ends is ended by the new engine's first word, not by silence."""
    nodes = Nodes(start)
    old = nodes.begin("source", 0)
    port = old.identity.port
    nodes.memory[1][:BLOCK] = b"o" * BLOCK
    nodes.sink.pull(offer(old, "before", 0), into=[0])
    (before,) = nodes.arrive()
    assert before.error is None
    half = offer(old, "half", 0, sealed=False)
    nodes.sink.pull(half, into=[1])
    for _ in range(50):
        for one in nodes.living:
            one.turn(TURN_S)
    nodes.end(old)
    new = nodes.begin("source", port)
    assert new.identity.engine_id != old.identity.engine_id
    nodes.memory[2][:BLOCK] = b"n" * BLOCK
    ticket = offer(new, "after", 0)
    nodes.sink.pull(ticket, into=[2])
    ended = {one.ticket_id: one.error for one in nodes.arrive(2)}
    assert isinstance(ended[half.ticket_id], TransferError)
    assert ended[ticket.ticket_id] is None
    ours = nodes.memory[0]
    assert ours[2 * BLOCK : 3 * BLOCK] == b"n" * BLOCK
    nodes.close()


@pytest.mark.parametrize("start", [NixlMover.start, tcp], ids=["nixl", "tcp"])
def test_a_ticket_of_an_engine_that_is_gone_disturbs_nobody(start: Start) -> None:
    """It comes late, and names who was at the address before."""
    nodes = Nodes(start)
    source = nodes.begin("source", 0)
    running = offer(source, "running", 0, sealed=False)
    nodes.sink.pull(running, into=[0])
    for _ in range(50):
        for one in nodes.living:
            one.turn(TURN_S)
    stale = KvTicket("gone/r", "gone", HERE, source.identity.port, "same")
    nodes.sink.pull(stale, into=[1])
    (ended,) = nodes.arrive()
    assert (ended.ticket_id, type(ended.error)) == ("gone/r", LeaseExpired)
    Connector.over(source).source.seal(running.ticket_id, Sealed(1, 7))
    (arrived,) = nodes.arrive()
    assert arrived.error is None
    nodes.close()
