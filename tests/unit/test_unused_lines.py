"""Connections that nobody asks: hung up before their first call, speaking first, or idle.

And what becomes of one whose request nobody takes.
"""

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from discovery.registration import Role
from proxy.errors import Cause, NodeFailed
from proxy.nodes.connection import NodeConnection
from proxy.nodes.connection_errors import ConnectionClosed, SilenceTimeout
from proxy.nodes.connection_pool import ConnectionPool, open_connections
from proxy.nodes.patience import ReplyTimeouts
from tests.fakes.raw_http import HANG, PATIENCE_S, answer, raw_server
from tests.unit.test_leg import leg_at, node, until
from tests.unit.test_lines import MUCH, PATIENT, WELL, call

SOON_S = 0.01


async def hang_up_on_all() -> asyncio.Server:
    return await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_one_that_is_hung_up_before_it_is_asked_fails_at_once(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """As where somebody in front of a node lets everybody in, and finds the node gone."""

    async def ask_too_late() -> None:
        async with await hang_up_on_all() as server, open_connections() as lines:
            host, port = server.sockets[0].getsockname()
            line = await lines.connect(f"{host}:{port}", PATIENT)
            await until(lambda: line.lost)
            with pytest.raises(ConnectionClosed):
                await line.ask(b"GET / HTTP/1.1\r\n\r\n", PATIENT)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(ask_too_late())


@pytest.mark.parametrize("said", [b"HTTP/1.1 5", answer(503, {})])
async def test_one_that_speaks_before_it_is_asked_is_hung_up(said: bytes) -> None:
    troubles, left = list[object](), asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(lambda _, told: troubles.append(told))

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await reader.read()
        writer.close()
        left.set()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    async with asyncio.timeout(PATIENCE_S), server, open_connections() as lines:
        host, port = server.sockets[0].getsockname()
        line = await lines.connect(f"{host}:{port}", PATIENT)
        await left.wait()
        with pytest.raises(ConnectionClosed):
            await line.ask(b"GET / HTTP/1.1\r\n\r\n", PATIENT)
    assert troubles == []


class Late(ConnectionPool):
    """The node has hung up before somebody comes to ask."""

    async def connect(self, address: str, patience: ReplyTimeouts) -> NodeConnection:
        line = await ConnectionPool.connect(self, address, patience)
        line._transport.close()
        await until(lambda: line.lost)
        return line


def test_a_node_that_hangs_up_before_it_is_asked_has_failed() -> None:
    """What is written to such a connection raises an error in uvloop, and none in asyncio."""

    async def ask() -> None:
        async with node(Role.DECODE, [HANG]) as (d, _):
            with pytest.raises(NodeFailed) as told:
                await anext(leg_at(Late(), d))
            assert told.value.cause is Cause.BROKEN

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(ask())


async def test_one_that_was_idle_for_too_long_is_not_used_again() -> None:
    """Its node may be about to hang up."""
    async with asyncio.timeout(PATIENCE_S), raw_server(WELL) as server:
        lines = ConnectionPool(keepalive_s=0)
        first = await call(lines, server)
        await first.read()
        first.close()
        assert lines.take_idle(server.address) is None
        assert first.lost
        lines.close()
        await server.left.wait()


async def test_connections_that_nobody_uses_are_closed() -> None:
    async with asyncio.timeout(PATIENCE_S), raw_server(WELL, WELL) as server:
        lines = ConnectionPool(keepalive_s=SOON_S)
        for _ in range(2):  # also after there were none
            used = await call(lines, server)
            await used.read()
            used.close()
            assert not used.lost
            await server.left.wait()
            server.left.clear()
        lines.close()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_what_a_node_has_not_taken_of_a_request_is_dropped_with_its_connection(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """A suspended node reads nothing, and its kernel acknowledges: only we can end it."""

    async def give_up() -> None:
        with socket.create_server(("127.0.0.1", 0)) as deaf:
            address = f"127.0.0.1:{deaf.getsockname()[1]}"
            async with open_connections() as lines, asyncio.timeout(PATIENCE_S):
                line = await lines.connect(address, PATIENT)
                with pytest.raises(SilenceTimeout):
                    await line.ask(b"x" * MUCH, ReplyTimeouts(SOON_S, SOON_S))
                wire: socket.socket = line._transport.get_extra_info("socket")
                await until(lambda: wire.fileno() < 0)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(give_up())
