"""Who comes to a KV port and is nobody there costs it little, however many they are."""

import socket
from collections.abc import Iterator

import pytest

from kv_transfer.accepting import OutOfResources
from kv_transfer.side_channel import frames, server
from kv_transfer.side_channel.frames import BadFrames, framed
from kv_transfer.side_channel.introduction import LONGEST_SAID
from kv_transfer.side_channel.poller import Poller
from kv_transfer.side_channel.server import INTRODUCTION_S, SideChannelServer
from kv_transfer.wire import TurnedAway, decode_from_source
from tests.fakes.reception import HERE, PATIENCE_S, heard, is_over, raw, until


@pytest.fixture
def reception() -> Iterator[SideChannelServer]:
    one = SideChannelServer.bind(HERE, 0, Poller())
    yield one
    one.close()


def whence(reception: SideChannelServer) -> list[tuple[str, int]]:
    return [guest.connection.getpeername() for guest in reception._guests.values()]


def test_who_does_not_say_its_name_does_not_stay(reception: SideChannelServer) -> None:
    """There are only so many file descriptors."""
    with raw(reception) as silent:
        until(reception, lambda: bool(reception._guests))
        with raw(reception, framed(b"sink")) as named:
            until(reception, lambda: bool(reception._by_name))
            guests = reception._guests
            assert len(guests) == 2
            list(reception.receive({}, INTRODUCTION_S + 1))  # nobody else has to come for that
            assert [one.name for one in guests.values()] == [b"sink"]
            assert is_over(silent)
            named.sendall(framed(b"here"))
            assert (b"sink", b"here") in heard(reception, 1)


def test_strangers_do_not_use_up_the_file_descriptors(
    reception: SideChannelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each that comes shuts out one that came before, and none who has said its name."""
    monkeypatch.setattr(server, "MOST_NAMELESS", 2)
    with raw(reception, framed(b"sink")) as named:
        until(reception, lambda: bool(reception._by_name))
        with raw(reception) as first, raw(reception) as second, raw(reception) as third:
            until(reception, lambda: third.getsockname() in whence(reception))
            assert whence(reception) == [one.getsockname() for one in (named, second, third)]
            assert is_over(first)
            third.sendall(framed(b"other"))
            second.sendall(framed(b"another"))
            named.sendall(framed(b"here"))
            assert heard(reception, 1) == [(b"sink", b"here")]
            until(reception, lambda: len(reception._by_name) == 3)
        assert not reception._nameless


def test_an_address_has_only_so_many_names(reception: SideChannelServer) -> None:
    """One that gives more and more names is told why, and those that it has may stay."""
    reception._named_from.most = 2
    with raw(reception, framed(b"a")), raw(reception, framed(b"b")) as second:
        until(reception, lambda: len(reception._by_name) == 2)
        with raw(reception, framed(b"c") + framed(b"unheard")) as third:
            ((where, refused),) = heard(reception, 1)
            assert (where, str(refused)) == (
                HERE.encode(),
                f"{HERE} has 2 connections already",
            )
            told = decode_from_source(third.recv(4096)[frames.LENGTH_BYTES :])
            assert told == TurnedAway(str(refused))
            assert sorted(reception._by_name) == [b"a", b"b"]
        second.sendall(framed(b"here"))
        assert heard(reception, 1) == [(b"b", b"here")]


def test_a_name_that_comes_anew_is_not_counted_twice(reception: SideChannelServer) -> None:
    """A sink's next connection may come before the end of its last one is noticed."""
    reception._named_from.most = 1
    with raw(reception, framed(b"a")) as first:
        until(reception, lambda: bool(reception._by_name))
        with raw(reception, framed(b"a") + framed(b"here")):
            assert heard(reception, 1) == [(b"a", b"here")]
            assert is_over(first)
    until(reception, lambda: not reception._guests)
    assert not reception._named_from


def test_nobody_is_waited_for_who_begins_with_more_than_a_name(
    reception: SideChannelServer,
) -> None:
    """What a stranger sends is kept until it is whole: that must not be much."""
    with raw(reception, (LONGEST_SAID + 1).to_bytes(frames.LENGTH_BYTES, "big")) as stranger:
        ((_, bad),) = heard(reception, 1)
        assert isinstance(bad, BadFrames)
        assert is_over(stranger)


def test_who_has_a_name_may_say_much_at_once(reception: SideChannelServer) -> None:
    much = bytes(LONGEST_SAID + 1)
    with raw(reception, framed(b"sink") + framed(much)):
        assert heard(reception, 1) == [(b"sink", much)]


def test_a_port_without_file_descriptors_wakes_nobody_again_and_again(
    reception: SideChannelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits in line is taken in as soon as there are some."""
    with raw(reception, framed(b"sink")), monkeypatch.context() as patch:
        patch.setattr(server, "accept", no_room)
        reception.waiting.wait({}, PATIENCE_S)
        assert not list(reception.receive(reception.waiting.ready_now(), 0.0))
        assert not reception.waiting.ready_now()
        patch.undo()
        list(reception.receive({}, 0.0))
        until(reception, lambda: bool(reception._by_name))
        with raw(reception):
            until(reception, lambda: bool(reception._nameless))


def no_room(_: socket.socket) -> None:
    raise OutOfResources
