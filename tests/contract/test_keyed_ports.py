"""A KV port with a key hands nothing over to who does not know it, and says why."""

import logging
import select
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from discovery.registration import pack
from discovery.signature import sign
from kv_transfer.api import Sealed
from kv_transfer.errors import PeerUnreachable
from kv_transfer.identity import Identity
from kv_transfer.layout import KvLayout
from kv_transfer.ledger.known_sinks import Peer
from kv_transfer.ledger.known_sources import Address
from kv_transfer.side_channel.frames import framed
from kv_transfer.side_channel.introduction import SIGNED, Introductions
from kv_transfer.side_channel.poller import Poller
from kv_transfer.side_channel.server import SideChannelServer
from kv_transfer.thread.service import TransferService
from kv_transfer.wire import FromSource, Hello, TurnedAway, Welcome, encode
from node.metrics import NO_REFUSALS
from node.signed_introductions import SignedIntroductions
from tests.contract.rigs import HERE, KEY, tcp_rig
from tests.fakes.caller import SOON_S, Caller
from tests.fakes.mover import FakeMover

NOW = 1e9
LAYOUT = KvLayout("bytes", 1, 1, ())
LONG = SIGNED + bytes(1 << 20)


def names(key: bytes = KEY, late_s: float = 0.0) -> SignedIntroductions:
    """Of a node whose clock is late by so much."""
    return SignedIntroductions(key, lambda: NOW - late_s)


@pytest.mark.parametrize(
    ("source", "sink", "told"),
    [
        (names(), None, "not signed: is --cluster-key the same there?"),
        (None, names(), "it signs, and there is no --cluster-key here"),
        (
            names(),
            names(b"another"),
            "the signature is wrong: is --cluster-key the same there?",
        ),
        (names(), names(late_s=95), "signed 95 s ago, by our clock: are both clocks right?"),
        (names(), names(late_s=-95), "signed -95 s ago, by our clock: are both clocks right?"),
    ],
)
def test_a_sink_that_is_not_let_in_is_told_why_at_once_and_frees_its_blocks(
    source: Introductions | None,
    sink: Introductions | None,
    told: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It does not wait for its patience to end, nor come back for the same pull."""
    caplog.set_level(logging.WARNING)
    with tcp_rig(names=(source, sink)) as rig:
        rig.fill(0, b"a")
        ticket = rig.source.offer("r")
        rig.source.extend(ticket.ticket_id, [0])
        rig.source.seal(ticket.ticket_id, Sealed(1, 0))
        rig.sink.pull(ticket, into=[3])
        (arrived,) = rig.arrive()
        assert isinstance(arrived.error, PeerUnreachable)
        assert "the source refused us" in str(arrived.error)
        assert told in str(arrived.error)
        assert rig.letters == bytes(8)
        assert rig.outcomes() == []
    logged = [one.getMessage() for one in caplog.records]
    assert [told in one for one in logged] == [True, True], "once at each side"
    assert logged[0].startswith("turned away 1 connections to the KV port, of b'127.0.0.1'")
    assert logged[1].startswith("was turned away 1 times by KV ports")


class Counted(SignedIntroductions):
    """How often somebody has come."""

    came = 0

    def read(self, said: bytes, here: Address) -> Peer:
        self.came += 1
        return super().read(said, here)


def test_a_sink_that_was_told_why_comes_once_for_each_pull() -> None:
    source = Counted(KEY)
    with tcp_rig(names=(source, None)) as rig:
        for number in range(1, 4):
            ticket = rig.source.offer(f"r{number}")
            rig.sink.pull(ticket, into=[3])
            (arrived,) = rig.arrive()
            assert isinstance(arrived.error, PeerUnreachable)
            assert rig.arrive() == []
            assert source.came == number


class Port:
    """A source, and whoever comes."""

    def __init__(self, introductions: Introductions | None) -> None:
        reception = SideChannelServer.bind(HERE, 0, Poller(), introductions)
        identity = Identity("engine", HERE, reception.port, "same", LAYOUT)
        self.service = TransferService(identity, [], FakeMover(), reception)
        self.address = HERE, reception.port
        self.reception = reception

    @contextmanager
    def visited(self, introduction: bytes) -> Iterator[Caller]:
        """By somebody who introduces himself so, and goes on as if that were well."""
        with socket.create_connection(self.address, SOON_S) as connection:
            connection.sendall(framed(introduction) + framed(encode(Hello("same", LAYOUT))))
            yield Caller(connection)

    def said_to(self, introduction: bytes) -> FromSource:
        with self.visited(introduction) as caller:
            self.turn_until_answered(caller)
            return caller.answer()

    def turn_until_answered(self, caller: Caller) -> None:
        while not _readable(caller.connection):
            self.service.turn(0.01)


@pytest.fixture
def port() -> Iterator[Port]:
    one = Port(names())
    yield one
    one.service.close()


def test_an_introduction_is_good_for_one_connection(port: Port) -> None:
    overheard = names().said(b"sink", port.address)
    assert isinstance(port.said_to(overheard), Welcome)
    assert port.said_to(overheard) == TurnedAway("seen before")


def test_each_refusal_is_counted_by_its_reason(port: Port) -> None:
    host, number = port.address
    good = names().said(b"sink", port.address)
    assert isinstance(port.said_to(good), Welcome)
    assert port.service.refused_connections == {}
    port.reception._named_from.most = 0
    for said in (
        *(b"sink", names(b"another").said(b"sink", port.address)),
        names(late_s=95).said(b"sink", port.address),
        *(good, names().said(b"lost", (host, number + 1))),
        names().said(b"another", port.address),
    ):
        assert isinstance(port.said_to(said), TurnedAway)
    with port.visited(LONG) as caller:
        port.turn_until_answered(caller)  # which is its end
    assert port.service.refused_connections == dict.fromkeys(NO_REFUSALS.keys() - {"signed"}, 1)


def test_who_has_a_key_where_there_is_none_is_counted() -> None:
    port = Port(None)
    with closing(port.service):
        assert isinstance(port.said_to(names().said(b"sink", port.address)), TurnedAway)
        assert port.service.refused_connections == {"signed": 1}


def test_who_is_turned_away_takes_nobodys_name(port: Port) -> None:
    """The sink that has the name is answered as before."""
    signing = names()
    with port.visited(signing.said(b"sink", port.address)) as sink:
        port.turn_until_answered(sink)
        assert isinstance(sink.answer(), Welcome)
        for said in (b"sink", names(b"another").said(b"sink", port.address)):
            assert isinstance(port.said_to(said), TurnedAway)
        sink.say(Hello("same", LAYOUT))
        port.turn_until_answered(sink)
        assert isinstance(sink.answer(), Welcome)


def test_an_introduction_is_for_one_source(port: Port) -> None:
    host, number = port.address
    elsewhere = names().said(b"sink", (host, number + 1))
    answer = port.said_to(elsewhere)
    assert isinstance(answer, TurnedAway)
    assert f"said to {host}:{number + 1}, not {host}:{number}" in answer.reason


def test_a_sink_that_connects_again_at_once_is_let_in_even_if_its_clock_goes_back(
    port: Port,
) -> None:
    back = iter([NOW, NOW, NOW - 10])
    sink = SignedIntroductions(KEY, lambda: next(back))
    for _ in range(3):
        assert isinstance(port.said_to(sink.said(b"sink", port.address)), Welcome)


def test_a_sink_whose_clock_was_hours_ahead_is_let_in_as_soon_as_it_is_right(
    port: Port,
) -> None:
    clock = iter([NOW + 7200, NOW])
    sink = SignedIntroductions(KEY, lambda: next(clock))
    assert isinstance(port.said_to(sink.said(b"sink", port.address)), TurnedAway)
    assert isinstance(port.said_to(sink.said(b"sink", port.address)), Welcome)


@pytest.mark.parametrize("junk", [SIGNED, SIGNED + b"\xc1", SIGNED + b"\x01", LONG])
def test_what_has_no_sense_is_worth_no_answer(port: Port, junk: bytes) -> None:
    with port.visited(junk) as stranger:
        port.turn_until_answered(stranger)
        with pytest.raises(ConnectionResetError):
            stranger.answer()
    assert not port.reception._guests


@pytest.mark.parametrize("name", [None, b"", "text", b"n" * 256, 5])
def test_a_key_does_not_make_a_name_of_anything(port: Port, name: object) -> None:
    message = {"sink": name, "source": "{}:{}".format(*port.address)}
    with port.visited(SIGNED + pack(sign(message, KEY, wall_time=NOW))) as stranger:
        port.turn_until_answered(stranger)
        with pytest.raises(ConnectionResetError):
            stranger.answer()
    assert not port.reception._by_name


def test_who_was_turned_away_is_heard_no_more_and_forgotten_when_he_leaves(port: Port) -> None:
    """However much he sends: a turn is not woken by it."""
    with port.visited(b"sink") as stranger:
        port.turn_until_answered(stranger)
        assert isinstance(stranger.answer(), TurnedAway)
        stranger.connection.sendall(framed(bytes(1 << 10)))
        assert not port.reception.waiting.ready_now()
        assert port.reception._guests
    while port.reception._guests:
        port.service.turn(0.01)


def test_no_key_is_ever_shown() -> None:
    assert KEY.decode() not in repr(names())


def _readable(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])
