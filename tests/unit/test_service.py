"""The transfer thread beside the engine's: what it leaves to it."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
import zmq

from kv_transfer.api import Sealed
from kv_transfer.errors import PeerUnreachable
from kv_transfer.identity import Identity
from kv_transfer.layout import KvLayout
from kv_transfer.ledger.sources import Address
from kv_transfer.mover import ReadEnd
from kv_transfer.service import READING_PAUSE_S, TransferService
from kv_transfer.sockets import bind_router, open_dealer
from kv_transfer.threaded import ThreadedSource
from kv_transfer.ticket import LEASE_S, KvTicket
from kv_transfer.wire import (
    SILENCE_S,
    FromSource,
    Hello,
    Look,
    News,
    Welcome,
    decode_from_source,
    encode,
)
from tests.fakes.mover import FakeMover

HERE, SOON_MS = "127.0.0.1", 5000


@dataclass
class Rig:
    mover: FakeMover
    service: TransferService
    pauses: list[float]


@pytest.fixture
def rig() -> Iterator[Rig]:
    context, mover, pauses = zmq.Context[zmq.Socket[bytes]](), FakeMover(), list[float]()
    router, port = bind_router(context, HERE, 0)
    identity = Identity("engine", HERE, port, "same", KvLayout("bytes", 1, 1, ()))
    service = TransferService(identity, [], mover, context, router, pause=pauses.append)
    yield Rig(mover, service, pauses)
    service.close()
    context.term()


def test_reads_under_way_do_not_keep_the_interpreter(rig: Rig) -> None:
    """A thread that never rests lets a step of many small kernels take many times as long."""
    rig.mover.pending = True
    rig.service.turn()
    rig.service.turn()
    assert rig.pauses == [READING_PAUSE_S] * 2


def test_without_reads_there_is_no_pause(rig: Rig) -> None:
    rig.service.turn(0)
    assert rig.pauses == []


def test_who_was_given_up_between_two_turns_is_parted_from_before_anything_else(
    rig: Rig,
) -> None:
    """Or what is begun with the same source in this turn would be parted from, too."""
    at, seen = ("host", 1), list[Address]()
    rig.service.pulls.parted.append(at)  # as the sweep leaves it
    rig.service.post(lambda: seen.extend(rig.mover.parted))
    rig.service.turn(0)
    assert seen == [at]
    assert rig.mover.parted == [at]


def test_who_was_given_up_while_it_was_met_is_not_taken_for_known(rig: Rig) -> None:
    """It is parted from as soon as that is over, so nothing can be read there."""
    service, lost = rig.service, PeerUnreachable("silent")
    welcome = Welcome("e", "same", service.identity.layout, (), (b"card",), "machine")
    source, port = bind_router(service.context, HERE, 0)
    at = HERE, port
    rig.mover.meeting = lambda address: service.pulls.lost(address, lost, now=service.clock())
    with contextlib.closing(source):
        service.pulls.hold(KvTicket("t", None, *at, None), now=service.clock())
        service.turn(0)
        assert source.poll(SOON_MS)
        source.send_multipart([source.recv_multipart()[0], encode(welcome)])
        while not rig.mover.met:
            service.turn()
        assert rig.mover.parted == [at]
        assert not service.pulls.knows(at, welcome)


def test_an_offer_is_known_before_anybody_can_ask_for_it(rig: Rig) -> None:
    """Its ticket may come back as a question while a turn is under way."""
    service = rig.service
    me, hello = service.identity, Hello("same", KvLayout("bytes", 1, 1, ()), "here")
    with contextlib.closing(open_dealer(service.context, b"sink", (HERE, me.port))) as sink:
        sink.send(encode(hello))
        assert service.router.poll(SOON_MS)
        service.turn(0)
        assert isinstance(answer(sink), Welcome)

        def offer_and_ask() -> float:
            """When the turn has run its commands, and looks at the clock."""
            service.clock = lambda: 0.0
            ticket = ThreadedSource(service).offer("r")
            sink.send(encode(Look(ticket.ticket_id, me.engine_id, 0)))
            assert service.router.poll(SOON_MS)
            return 0.0

        service.commands.append(lambda: setattr(service, "clock", offer_and_ask))
        service.turn(0)
        assert isinstance(answer(sink), News)


@pytest.mark.parametrize("where", ["it waits", "it works"])
def test_a_thread_that_was_away_ends_nothing_before_it_has_heard(rig: Rig, where: str) -> None:
    """Stopped, starved or suspended: what peers said meanwhile may be heard in a while only."""
    service, now = rig.service, [0.0]
    service.clock = lambda: now[0]
    service.pulls.hold(KvTicket("s/t", "s", HERE, 9, "same"), now=0.0)
    service.offers.offer("t", None)
    service.offers.seal("t", Sealed(0, 0), now=SILENCE_S - LEASE_S)
    service.turn(0)
    nap = Nap(now, SILENCE_S)
    if where == "it waits":
        service._waiting = nap  # type: ignore[assignment]
    else:
        rig.mover.poll = nap.poll  # type: ignore[method-assign]
    service.turn(0)
    service.turn(0)
    assert rig.mover.parted == []
    assert (service.pulls.num_open, service.offers.num_open) == (1, 1)
    now[0] += SILENCE_S
    service.turn(0)
    assert rig.mover.parted == [(HERE, 9)]
    assert service.offers.num_open == 0


@dataclass
class Nap:
    """A call that takes so long, once."""

    now: list[float]
    seconds: float

    def add(self, *_: object) -> None:
        """Nothing is waited for."""

    def close(self, socket: "zmq.Socket[bytes]") -> None:
        socket.close(linger=0)

    def wait(self, *_: object) -> None:
        self.now[0] += self.seconds
        self.seconds = 0.0

    def poll(self) -> Sequence[ReadEnd]:
        self.wait()
        return []


def answer(sink: "zmq.Socket[bytes]") -> FromSource:
    assert sink.poll(SOON_MS)
    return decode_from_source(sink.recv())


def test_a_way_to_an_address_that_is_none_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are only so many sockets in a process."""
    with zmq.Context[zmq.Socket[bytes]]() as context, context.socket(zmq.DEALER) as dealer:
        monkeypatch.setattr(context, "socket", lambda kind: dealer)
        with pytest.raises(zmq.ZMQError, match="Invalid argument"):
            open_dealer(context, b"sink", ("no address", 1))
        assert dealer.closed
