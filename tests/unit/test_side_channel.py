"""Messages between nodes arrive whole, in order, and disturb nobody else, whatever is sent."""

import os
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kv_transfer.lookup import Lookup, addresses
from kv_transfer.side_channel import frames
from kv_transfer.side_channel.frames import LARGEST_FRAME, BadFrames, framed
from kv_transfer.side_channel.introduction import LONGEST_NAME
from kv_transfer.side_channel.poller import Poller
from kv_transfer.side_channel.port import open_port
from kv_transfer.side_channel.server import SideChannelServer
from kv_transfer.side_channel.source_connection import RETRY_S, SourceConnection
from tests.fakes.reception import HERE, PATIENCE_S, Said, heard, is_over, raw, until


@pytest.fixture
def reception() -> Iterator[SideChannelServer]:
    one = SideChannelServer.bind(HERE, 0, Poller())
    yield one
    one.close()


def way_to(reception: SideChannelServer, name: bytes = b"sink") -> SourceConnection:
    return SourceConnection((HERE, reception.port), name, Poller())


def answered(way: SourceConnection, count: int) -> list[bytes]:
    """So many answers."""
    said = list[bytes]()
    while len(said) < count:
        way.waiting.wait({}, PATIENCE_S)
        said += way.receive(way.waiting.ready_now(), 0.0)
    return said


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends, neither of which waits."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        yield ours, theirs


def test_who_came_before_anybody_was_there_is_turned_out() -> None:
    """A port is taken before weights are loaded; what was said meanwhile may be stale."""
    held = open_port(HERE, 0)
    early = socket.create_connection(held.getsockname(), PATIENCE_S)
    one = SideChannelServer.bind(HERE, 0, Poller(), held=held)
    try:
        assert one.port == early.getpeername()[1]
        assert is_over(early)
        with raw(one, framed(b"sink") + framed(b"later")):
            assert heard(one, 1) == [(b"sink", b"later")]
    finally:
        early.close()
        one.close()


def test_messages_go_both_ways_in_order(reception: SideChannelServer) -> None:
    way = way_to(reception)
    messages = [bytes([number]) * number for number in range(100)]
    for message in messages:
        way.send(message, 0.0)
    assert heard(reception, 100) == [(b"sink", message) for message in messages]
    for message in messages:
        reception.send(b"sink", message)
    assert answered(way, 100) == messages
    way.close()


def test_a_message_may_come_byte_by_byte(reception: SideChannelServer) -> None:
    with raw(reception) as connection:
        data = framed(b"sink") + framed(b"") + framed(b"hello")
        said = list[Said]()
        for byte in data:
            connection.sendall(bytes([byte]))
            while not (ready := reception.waiting.ready_now()):
                reception.waiting.wait({}, PATIENCE_S)
            said += reception.receive(ready, 0.0)
        said += heard(reception, 2 - len(said))
    assert said == [(b"sink", b""), (b"sink", b"hello")]


def test_a_long_message_waits_for_its_reader(reception: SideChannelServer) -> None:
    """The kernel takes a part of it at a time, and neither side waits for that."""
    way, long = way_to(reception), bytes(LARGEST_FRAME - 1024)
    way.send(long, 0.0)
    said = list[Said]()
    while not said:
        said += reception.receive(reception.waiting.ready_now(), 0.0)
        list(way.receive(way.waiting.ready_now(), 0.0))
    assert said == [(b"sink", long)]
    way.close()


def test_who_is_not_there_yet_is_told_once_it_is(reception: SideChannelServer) -> None:
    port = reception.port
    reception.close()
    way = SourceConnection((HERE, port), b"sink", Poller())
    way.send(b"hello", 0.0)
    list(way.receive(way.waiting.ready_now(), 0.0))  # refused
    later = SideChannelServer.bind(HERE, port, Poller())
    list(way.receive(way.waiting.ready_now(), RETRY_S / 2))
    assert way._connection is None  # not so soon
    list(way.receive(way.waiting.ready_now(), RETRY_S))
    assert heard(later, 1) == [(b"sink", b"hello")]
    way.close()
    later.close()


def test_a_source_that_restarts_at_its_port_is_met_again(reception: SideChannelServer) -> None:
    """And knows us by our name: it is said on each connection."""
    way, port = way_to(reception), reception.port
    way.send(b"one", 0.0)
    assert heard(reception, 1) == [(b"sink", b"one")]
    reception.close()
    while way._connection is not None:
        way.waiting.wait({}, PATIENCE_S)
        list(way.receive(way.waiting.ready_now(), 0.0))
    later = SideChannelServer.bind(HERE, port, Poller())
    way.send(b"two", RETRY_S)
    assert heard(later, 1) == [(b"sink", b"two")]
    way.close()
    later.close()


def test_a_message_that_was_cut_is_sent_again_as_a_whole() -> None:
    """Half of one is nothing; whoever gets the rest of it would wait for its beginning."""
    outgoing, incoming, whole = frames.SendBuffer(), frames.ReceiveBuffer(), list[bytes]()
    outgoing.add(framed(bytes(8 << 20)))
    with pair() as (ours, theirs):
        outgoing.send(ours)
        assert outgoing
        theirs.close()
        with pytest.raises(OSError, match=r"pipe|reset"):
            outgoing.send(ours)
    outgoing.rewind()
    with pair() as (ours, theirs):
        while not whole:
            outgoing.send(ours)
            whole += incoming.receive(theirs)
    assert whole == [bytes(8 << 20)]
    assert not outgoing
    outgoing.add(framed(bytes(9 << 20)))  # what was sent does not count any more


def test_a_newer_connection_takes_over_a_name(reception: SideChannelServer) -> None:
    """Who was restarted is answered, and not who is gone."""
    with raw(reception, framed(b"sink") + framed(b"old")) as old:
        assert heard(reception, 1) == [(b"sink", b"old")]
        new = way_to(reception)
        new.send(b"new", 0.0)
        assert heard(reception, 1) == [(b"sink", b"new")]
        assert is_over(old)
        reception.send(b"sink", b"hello")
        assert answered(new, 1) == [b"hello"]
        new.close()


def test_of_two_that_are_introduced_in_one_turn_the_newer_has_the_name(
    reception: SideChannelServer,
) -> None:
    """Whatever their numbers: in a set of both, that of the newer one is the first."""
    with socket.socket() as old, socket.socket() as new:
        spare = {number % 8: number for number in (os.dup(0) for _ in range(8))}
        for one, place in ((old, 7), (new, 0)):
            os.close(spare.pop(place))  # whoever is accepted next gets this number
            one.settimeout(PATIENCE_S)
            one.connect((HERE, reception.port))
            reception._accept(0.0)
        assert [number % 8 for number in reception._guests] == [7, 0]
        for number in spare.values():
            os.close(number)
        for one in (old, new):
            one.sendall(framed(b"sink") + framed(b"hello"))
        assert heard(reception, 2) == [(b"sink", b"hello")] * 2
        assert is_over(old)
        reception.send(b"sink", b"hello")
        assert new.recv(99) == framed(b"hello")


@pytest.mark.parametrize(
    "junk",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        framed(b"sink") + (LARGEST_FRAME + 1).to_bytes(4, "big"),
        framed(b""),
        framed(b"n" * (LONGEST_NAME + 1)),
    ],
)
def test_what_has_no_sense_ends_its_connection_only(
    reception: SideChannelServer, junk: bytes
) -> None:
    way = way_to(reception, b"other")
    way.send(b"one", 0.0)
    heard(reception, 1)
    with raw(reception, junk) as stranger:
        ((_, bad),) = heard(reception, 1)
        assert isinstance(bad, BadFrames)
        assert is_over(stranger)
    way.send(b"two", 0.0)
    assert heard(reception, 1) == [(b"other", b"two")]
    way.close()


def test_who_never_stops_sending_has_its_share_of_a_turn_only() -> None:
    """Leases and other peers wait for the turn's end."""
    incoming, endless = frames.ReceiveBuffer(), Endless()
    messages = list(incoming.receive(endless))  # type: ignore[arg-type]
    assert len(messages) == endless.calls == frames.MOST_AT_ONCE


class Endless:
    """A connection that always has as much as is asked for."""

    calls = 0

    def recv(self, size: int) -> bytes:
        self.calls += 1
        return framed(bytes(size - frames.LENGTH_BYTES))


def test_nobody_is_told_nothing(reception: SideChannelServer) -> None:
    reception.send(b"nobody", b"hello")
    assert reception.waiting.ready_now() == {}


def test_what_nobody_reads_is_not_kept_for_ever(
    reception: SideChannelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for a sink that has stopped reading nor for a source that is not there."""
    monkeypatch.setattr(frames, "MOST_UNSENT", 1 << 10)
    with raw(reception, framed(b"sink")) as deaf:
        until(reception, lambda: bool(reception._by_name))
        while reception._by_name:
            reception.send(b"sink", bytes(1 << 9))
        assert deaf.recv(1)  # what had been sent
    way = SourceConnection((HERE, 1), b"sink", Poller())
    way.send(bytes(1 << 9), 0.0)
    with pytest.raises(BadFrames):
        way.send(bytes(1 << 9), 0.0)
    way.close()


def test_a_name_is_looked_up_by_somebody_else(reception: SideChannelServer) -> None:
    """A name server that does not answer keeps no lease from being renewed."""
    slow = Lookup()
    way = SourceConnection(
        ("localhost", reception.port), b"sink", Poller(), look_up=lambda *_: slow
    )
    way.send(b"hello", 0.0)
    assert way._connection is None
    slow._found.set_result(addresses(HERE, reception.port))
    list(way.receive(way.waiting.ready_now(), 0.0))
    assert heard(reception, 1) == [(b"sink", b"hello")]
    way.close()


def test_a_source_is_met_at_the_second_address_of_its_name(
    reception: SideChannelServer,
) -> None:
    """As of localhost, which is ::1 first at many places, where our nodes do not listen."""
    with socket.socket() as nobody:
        nobody.bind((HERE, 0))
        both = addresses(*nobody.getsockname()) + addresses(HERE, reception.port)
        way = SourceConnection(
            ("localhost", reception.port),
            b"sink",
            Poller(),
            look_up=lambda *_: Lookup.known(both),
        )
        way.send(b"hello", 0.0)
        assert heard(reception, 1) == [(b"sink", b"hello")]
        reception.send(b"sink", b"x")
        assert answered(way, 1) == [b"x"]
        way.close()


def test_connections_announce_what_there_is_to_do(reception: SideChannelServer) -> None:
    """Nobody asks in vain: nothing is ready where nothing was said."""
    way = way_to(reception)
    way.send(b"hello", 0.0)
    heard(reception, 1)
    list(way.receive(way.waiting.ready_now(), 0.0))
    assert way.waiting.ready_now() == {}
    assert reception.waiting.ready_now() == {}
    reception.send(b"sink", b"x")
    way.waiting.wait({}, PATIENCE_S)
    assert list(way.waiting.ready_now().values()) == [select.POLLIN]
    way.close()
