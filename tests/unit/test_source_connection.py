"""A sink's connection to a source: full, broken, and until there is one again."""

import os
from collections.abc import Iterator

import pytest

from kv_transfer.lookup import Lookup, addresses
from kv_transfer.side_channel.frames import LARGEST_FRAME, framed
from kv_transfer.side_channel.poller import Poller
from kv_transfer.side_channel.server import SideChannelServer
from kv_transfer.side_channel.source_connection import RETRY_S, SourceConnection
from tests.fakes.reception import HERE, PATIENCE_S, Said, heard, until

LONG = bytes(LARGEST_FRAME - 1024)  # more than the kernel takes at once


@pytest.fixture
def reception() -> Iterator[SideChannelServer]:
    one = SideChannelServer.bind(HERE, 0, Poller())
    yield one
    one.close()


@pytest.fixture
def way(reception: SideChannelServer) -> Iterator[SourceConnection]:
    """It is known, and has nothing to say."""
    one = SourceConnection((HERE, reception.port), b"sink", Poller())
    one.send(b"one", 0.0)
    assert heard(reception, 1) == [(b"sink", b"one")]
    list(one.receive(one.waiting.ready_now(), 0.0))
    yield one
    one.close()


def hang_up(reception: SideChannelServer, way: SourceConnection) -> None:
    """From the source's side; the sink sees that."""
    (guest,) = reception._guests.values()
    reception._close(guest)
    while way._connection is not None:
        way.waiting.wait({}, PATIENCE_S)
        assert list(way.receive(way.waiting.ready_now(), 0.0)) == []


def test_half_an_answer_is_forgotten_with_its_connection(
    reception: SideChannelServer, way: SourceConnection
) -> None:
    """Or the next one would be taken for its rest."""
    (guest,) = reception._guests.values()
    guest.connection.sendall(framed(b"cut")[:-1])
    hang_up(reception, way)
    way.send(b"two", RETRY_S)
    heard(reception, 1)
    reception.send(b"sink", b"whole")
    way.waiting.wait({}, PATIENCE_S)
    assert list(way.receive(way.waiting.ready_now(), RETRY_S)) == [b"whole"]


def test_what_was_half_sent_is_sent_again_as_a_whole(
    reception: SideChannelServer, way: SourceConnection
) -> None:
    """The source would take the rest of it for the length of another message."""
    way.send(LONG, 0.0)
    hang_up(reception, way)
    said = list[Said]()
    while not said:
        list(way.receive(way.waiting.ready_now(), RETRY_S))
        said += reception.receive(reception.waiting.ready_now(), 0.0)
    assert said == [(b"sink", LONG)]


def test_what_could_not_be_sent_is_when_there_is_room(
    reception: SideChannelServer, way: SourceConnection
) -> None:
    """Nothing else may come that would wake the thread."""
    assert way.waiting.ready_now() == {}
    way.send(LONG, 0.0)
    while ready := reception.waiting.ready_now():
        assert list(reception.receive(ready, 0.0)) == []
    way.waiting.wait({}, PATIENCE_S)
    assert way.waiting.ready_now()


def test_an_answer_that_could_not_be_sent_is_when_there_is_room(
    reception: SideChannelServer, way: SourceConnection
) -> None:
    assert reception.waiting.ready_now() == {}
    reception.send(b"sink", LONG)
    while ready := way.waiting.ready_now():
        assert list(way.receive(ready, 0.0)) == []
    reception.waiting.wait({}, PATIENCE_S)
    assert reception.waiting.ready_now()


def test_what_is_closed_is_not_watched_any_more(way: SourceConnection) -> None:
    """It would be ready for ever, and its thread would never rest."""
    way.close()
    assert way.waiting.ready_now() == {}


def test_a_sink_that_left_is_not_watched_any_more(
    reception: SideChannelServer, way: SourceConnection
) -> None:
    way.close()
    until(reception, lambda: not reception._guests)
    assert reception.waiting.ready_now() == {}


def test_a_source_is_looked_up_anew_for_each_attempt(reception: SideChannelServer) -> None:
    """A node that was started again elsewhere has the same name and another address."""
    here = addresses(HERE, reception.port)
    reception.close()
    later = SideChannelServer.bind(HERE, 0, Poller())
    found = [Lookup.known(here), Lookup.known(addresses(HERE, later.port))]
    way = SourceConnection(("name", 1), b"sink", Poller(), look_up=lambda *_: found.pop(0))
    way.send(b"hello", 0.0)
    list(way.receive(way.waiting.ready_now(), 0.0))  # refused
    list(way.receive(way.waiting.ready_now(), RETRY_S))
    assert found == []
    assert heard(later, 1) == [(b"sink", b"hello")]
    way.close()
    later.close()


def test_an_attempt_goes_on_when_its_lookup_is_over(reception: SideChannelServer) -> None:
    """If each turn began another one, a name that takes a while would never be reached."""
    over, announces = os.pipe()
    slow = Lookup(_over=over)
    lookups = [slow]
    way = SourceConnection(("name", 1), b"sink", Poller(), look_up=lambda *_: lookups.pop())
    way.send(b"hello", 0.0)
    list(way.receive({}, 0.0))
    assert way.waiting.ready_now() == {}
    slow._found.set_result(addresses(HERE, reception.port))
    os.close(announces)
    assert way.waiting.ready_now()
    list(way.receive({}, 0.0))
    assert heard(reception, 1) == [(b"sink", b"hello")]
    way.close()


def test_a_source_that_left_is_not_called_without_a_message(
    reception: SideChannelServer, way: SourceConnection
) -> None:
    """Or each node that is gone would be called ten times a second, for ever."""
    hang_up(reception, way)
    list(way.receive({}, RETRY_S))
    assert way._connection is None
    assert way._dialer is None
