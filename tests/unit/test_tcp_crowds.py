"""Many connections of peers that know the TCP mover's secret: each address has a limit."""

import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from kv_transfer.blocks.runs import BlockRuns
from kv_transfer.movers.tcp_requests import framed
from kv_transfer.movers.tcp_serving import RegionServer
from tests.unit.test_tcp_strangers import HERE, SOON_S, coming, stays


@pytest.fixture
def serving() -> Iterator[RegionServer]:
    one = RegionServer.start(HERE, [])
    yield one
    one.close()


def test_a_peer_that_opens_more_and_more_connections_gets_no_more(
    serving: RegionServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Its earlier ones stay, since reads may be under way; the log has it once."""
    serving._known_from.most = 2
    with ExitStack() as held:
        first, second, *more = [
            held.enter_context(closing(coming(serving, serving.secret))) for _ in range(4)
        ]
        assert [stays(serving, one) for one in (first, second, *more)] == [
            *(True, True, False, False)
        ]
        assert [one.recv(1) for one in more] == [b"", b""]
        assert not serving._strangers
        told = f"{HERE} has 2 connections to the KV memory here: more are closed"
        assert [one.getMessage() for one in caplog.records] == [told]
        first.close()
        wait_and_serve(serving)
        again = held.enter_context(closing(coming(serving, serving.secret)))
        assert stays(serving, again)


def test_peers_of_other_addresses_have_room_of_their_own(serving: RegionServer) -> None:
    serving._known_from.most = 1
    with (
        closing(coming(serving, serving.secret)) as one,
        closing(coming(serving, serving.secret, "127.0.0.2")) as other,
    ):
        assert stays(serving, one)
        assert stays(serving, other)


def test_nothing_is_kept_of_addresses_that_are_gone(
    serving: RegionServer, caplog: pytest.LogCaptureFixture
) -> None:
    """And when one comes back and is crowded again, that is logged again."""
    serving._known_from.most = 1
    for times in (1, 2):
        with (
            closing(coming(serving, serving.secret)),
            closing(coming(serving, serving.secret)),
        ):
            assert len(caplog.records) == times
        wait_and_serve(serving)
        assert not serving._guests
        assert not serving._known_from
        assert not serving._crowded
        assert list(serving.interests) == [serving.listener.fileno()]


def test_who_has_said_nothing_is_not_asked(serving: RegionServer) -> None:
    """A call for each of hundreds of peers in every turn would make each turn long."""
    with (
        closing(coming(serving, serving.secret)) as quiet,
        closing(coming(serving, serving.secret)) as other,
    ):
        ours = {guest.connection.getpeername(): guest for guest in serving._guests.values()}
        ours[quiet.getsockname()].connection = Asked(ours[quiet.getsockname()].connection)  # type: ignore[assignment]
        other.sendall(framed(BlockRuns.of(()), None))
        wait_and_serve(serving)
        assert stays(serving, other)
        assert ours[quiet.getsockname()].connection.asked == 0  # type: ignore[attr-defined]


class Asked:
    """A connection that counts how often it is read."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.asked = connection, 0

    def recv(self, most: int) -> bytes:
        self.asked += 1
        return self.connection.recv(most)

    def __getattr__(self, name: str) -> object:
        return getattr(self.connection, name)


def wait_and_serve(serving: RegionServer) -> None:
    """A turn, once there is something to do."""
    assert select.select(list(serving.interests), [], [], SOON_S)[0]
    serving.poll()
