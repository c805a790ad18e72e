"""A name of several addresses: one that refuses or is silent hides none that is there."""

import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from kv_transfer.accepting import KEEPALIVE, accept
from kv_transfer.dialing import ATTEMPT_S, Dialer
from kv_transfer.lookup import Found, Lookup, addresses

HERE, PATIENCE_MS = "127.0.0.1", 10_000


@contextmanager
def listening() -> Iterator[socket.socket]:
    """A port where somebody is."""
    with socket.create_server((HERE, 0)) as listener:
        yield listener


@contextmanager
def silent() -> Iterator[socket.socket]:
    """A port whose line is full: who comes now gets no answer, as from behind a cut cable."""
    with ExitStack() as held:
        listener = held.enter_context(socket.create_server((HERE, 0), backlog=0))
        while True:
            one = held.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
            if not select.select([], [one], [], 0.05)[1]:
                break
        yield listener


@contextmanager
def nobody() -> Iterator[socket.socket]:
    """A port that refuses: it is held, and nobody listens."""
    with socket.socket() as holder:
        holder.bind((HERE, 0))
        yield holder


def found(*sockets: socket.socket) -> Found:
    """As getaddrinfo would answer."""
    return [one for at in sockets for one in addresses(*at.getsockname())]


def connected(dialer: Dialer, now: float = 0.0) -> socket.socket:
    """As a thread gets it that waits for what announces it."""
    while (connection := dialer.connect(now)) is None:
        number, events = dialer.interest
        assert number is not None
        poller = select.poll()
        poller.register(number, events)
        assert poller.poll(PATIENCE_MS)
    return connection


def test_an_address_that_refuses_leads_to_the_next() -> None:
    with nobody() as first, listening() as second:
        dialer = Dialer(Lookup.known(found(first, second)))
        with connected(dialer) as connection:
            assert connection.getpeername() == second.getsockname()


def test_a_machine_that_is_gone_does_not_keep_its_connection() -> None:
    """The kernel asks for signs of life, on either side."""
    with listening() as there:
        ours = connected(Dialer(Lookup.known(found(there))))
        theirs = accept(there)
        assert theirs is not None
        with ours, theirs:
            for connection in (ours, theirs):
                assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                idle = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
                assert idle == KEEPALIVE["TCP_KEEPIDLE"]


def test_an_address_of_no_reachable_network_leads_to_the_next() -> None:
    """As of the other family, where a host has both and we have one."""
    with listening() as second:
        there = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("100::1", 1, 0, 0))]
        with connected(Dialer(Lookup.known(there + found(second)))) as connection:
            assert connection.getpeername() == second.getsockname()


def test_an_address_that_is_silent_leads_to_the_next_after_a_while() -> None:
    with silent() as first, listening() as second:
        dialer = Dialer(Lookup.known(found(first, second)))
        assert dialer.connect(5.0) is None
        assert dialer.connect(5.0 + ATTEMPT_S / 2) is None
        with connected(dialer, 5.0 + ATTEMPT_S) as connection:
            assert connection.getpeername() == second.getsockname()


def test_the_last_address_has_all_the_time_that_the_caller_has() -> None:
    with silent() as only:
        dialer = Dialer(Lookup.known(found(only)))
        for now in (0.0, ATTEMPT_S, 100 * ATTEMPT_S):
            assert dialer.connect(now) is None
        dialer.close()


def test_where_nobody_answers_the_last_error_is_told() -> None:
    with nobody() as first, nobody() as second:
        dialer = Dialer(Lookup.known(found(first, second)))
        with pytest.raises(OSError, match="ECONNREFUSED"):
            connected(dialer)
        assert dialer.interest == (None, select.POLLIN)


def test_a_name_that_is_not_known_yet_is_waited_for() -> None:
    slow = Lookup()
    dialer = Dialer(slow)
    assert dialer.connect(0.0) is None
    with listening() as there:
        slow._found.set_result(found(there))
        connected(dialer).close()


def test_who_does_not_wait_any_more_leaves_nothing_open() -> None:
    with silent() as only:
        dialer = Dialer(Lookup.known(found(only)))
        dialer.connect(0.0)
        attempt = dialer._attempt
        assert attempt is not None
        dialer.close()
        assert attempt.fileno() == -1
