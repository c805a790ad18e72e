"""Connections to nodes: what is read of them, when they are kept, and what ends them."""

import asyncio
import errno
import math
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, closing

import pytest
import uvloop

from proxy.nodes.connection import (
    LONGEST_HEAD,
    MOST_AT_ONCE,
    MOST_UNREAD,
    NodeConnection,
)
from proxy.nodes.connection_errors import (
    ConnectionClosed,
    HostGone,
    MalformedReply,
    NoConnection,
    SilenceTimeout,
)
from proxy.nodes.connection_pool import NO_ROOM_MS, WATCH, ConnectionPool, open_connections
from proxy.nodes.patience import ReplyTimeouts
from tests.fakes.raw_http import (
    CHUNKED,
    CUT,
    END,
    HANG,
    PATIENCE_S,
    SSE,
    RawServer,
    Step,
    answer,
    chunk,
    raw_server,
)

PARTS = 400
MUCH = 32 << 20  # more than sockets have room for
PATIENT, AGES_S = ReplyTimeouts(PATIENCE_S, PATIENCE_S), 3600.0
WELL = [SSE, chunk(b"one"), chunk(b"two"), END]


@asynccontextmanager
async def asking(*scripts: Iterable[Step]) -> AsyncGenerator[tuple[ConnectionPool, RawServer]]:
    async with raw_server(*scripts) as server, open_connections() as lines:
        yield lines, server


async def call(
    lines: ConnectionPool, server: RawServer, timeouts: ReplyTimeouts = PATIENT
) -> NodeConnection:
    return await lines.call(server.address, "/path", b"{}", timeouts)


async def read(
    lines: ConnectionPool, server: RawServer, timeouts: ReplyTimeouts = PATIENT
) -> bytes:
    with closing(await call(lines, server, timeouts)) as line:
        return await line.read()


async def test_a_request_has_what_http_wants_of_it() -> None:
    async with asking(WELL) as (lines, server):
        with closing(
            await lines.call(server.address, "/p", b"{1}", PATIENT, {"Traceparent": "00"})
        ) as line:
            assert (line.status, line.content_type) == (200, "text/event-stream")
            assert await line.read() == b"onetwo"
    head = server.heads[0]
    assert head.startswith(f"POST /p HTTP/1.1\r\nHost: {server.address}\r\n")
    assert "\r\nTraceparent: 00\r\n" in head
    assert server.bodies == [b"{1}"]


@pytest.mark.parametrize(
    "script",
    [
        [b"".join(WELL)],
        [bytes([byte]) for byte in b"".join(WELL)],
        [answer(200, "onetwo", "text/plain").replace(b'"', b"").replace(b": 8", b": 6")],
        [b"HTTP/1.1 200 X\r\n\r\none", b"two", CUT],
    ],
    ids=["at once", "byte by byte", "with a length", "until the end"],
)
async def test_a_body_is_whole_however_it_comes(script: list[Step]) -> None:
    async with asking(script) as (lines, server):
        assert await read(lines, server) == b"onetwo"


async def test_a_connection_is_used_again_after_a_whole_reply_only() -> None:
    async with asking(WELL, [*WELL[:2], HANG], WELL) as (lines, server):
        assert await read(lines, server) == b"onetwo"
        with closing(await call(lines, server)) as line:
            assert await line.read_some() == b"one"
        assert server.connections == 1
        assert await read(lines, server) == b"onetwo"
        assert server.connections == 2


async def test_a_node_that_wants_no_more_is_not_asked_there_again() -> None:
    parting = [b"HTTP/1.1 200 X\r\nConnection: close\r\n" + CHUNKED, END]
    async with asking(parting, WELL) as (lines, server):
        assert await read(lines, server) == b""
        assert await read(lines, server) == b"onetwo"
        assert server.connections == 2


async def test_who_hung_up_while_idle_is_asked_anew_and_who_began_to_answer_is_not() -> None:
    async with asking(WELL, [CUT], WELL, [b"HTTP/1.1 2", CUT]) as (lines, server):
        for _ in range(2):
            assert await read(lines, server) == b"onetwo"
        with pytest.raises(ConnectionClosed):
            await call(lines, server)
        assert server.connections == 2


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_one_that_is_hung_up_at_this_moment_is_asked_anew(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """The transport knows it before the line is told: what is written then goes nowhere."""

    async def ask_twice() -> None:
        async with asking(WELL, WELL) as (lines, server):
            first = await call(lines, server)
            with closing(first):
                await first.read()
            first._transport.close()
            assert not first.lost
            assert await read(lines, server) == b"onetwo"
            assert server.connections == 2

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(ask_twice())


async def test_whose_host_is_gone_is_asked_by_no_other_connection() -> None:
    async with asking(WELL, [HANG], WELL) as (lines, server):
        assert await read(lines, server) == b"onetwo"
        [kept] = lines._idle[server.address]
        server.asked.clear()
        asked = asyncio.create_task(call(lines, server))
        await server.asked.wait()
        kept.connection_lost(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))
        with pytest.raises(HostGone, match="timed out"):
            await asked
        assert server.connections == 1


async def test_who_stops_waiting_for_a_reply_hangs_up() -> None:
    async with asyncio.timeout(PATIENCE_S), asking([HANG]) as (lines, server):
        waiting = asyncio.create_task(call(lines, server))
        await server.asked.wait()
        assert not server.left.is_set()
        waiting.cancel()
        await server.left.wait()
        assert waiting.cancelled()


async def test_a_fresh_connection_that_is_cut_is_a_failure() -> None:
    async with asking([CUT]) as (lines, server):
        with pytest.raises(ConnectionClosed):
            await call(lines, server)


@pytest.mark.parametrize(
    "head", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 X\r\nA: " + b"a" * LONGEST_HEAD]
)
async def test_what_is_no_head_is_refused(head: bytes) -> None:
    async with asking([head, HANG]) as (lines, server):
        with pytest.raises(MalformedReply):
            await call(lines, server)
        async with asyncio.timeout(PATIENCE_S):
            await server.left.wait()


async def test_what_came_before_a_cut_is_read_first() -> None:
    async with asking([*WELL[:3], CUT]) as (lines, server):
        with closing(await call(lines, server)) as line:
            said = await line.read(len(b"onetwo"))
            assert said == b"onetwo"
            with pytest.raises(ConnectionClosed):
                await line.read_some()


@pytest.mark.parametrize("script", [[HANG], [SSE, HANG]], ids=["no head", "no body"])
async def test_silence_has_an_end(script: list[Step]) -> None:
    """Each limit counts by itself, and the body's as soon as there is a head."""
    shorter = ReplyTimeouts(*((0.01, AGES_S) if script == [HANG] else (AGES_S, 0.01)))
    async with asking(script) as (lines, server), asyncio.timeout(PATIENCE_S):
        with pytest.raises(SilenceTimeout):
            await read(lines, server, shorter)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_kernel_watches_the_host_at_the_other_end(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def look() -> None:
        async with asking(WELL) as (lines, server):
            with closing(await call(lines, server)) as line:
                wire: socket.socket = line._transport.get_extra_info("socket")
                assert wire.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                there = {name: getattr(socket, name, None) for name in WATCH}
                told = {
                    name: wire.getsockopt(socket.IPPROTO_TCP, option)
                    for name, option in there.items()
                    if option is not None
                }
                assert told == {name: WATCH[name] for name in told}
                assert sys.platform != "linux" or told == WATCH

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(look())


async def test_what_nobody_takes_in_time_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        pytest.skip("this platform has no such bound")
    monkeypatch.setitem(WATCH, "TCP_USER_TIMEOUT", 50)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        async with open_connections() as lines, asyncio.timeout(PATIENCE_S):
            with pytest.raises(ConnectionClosed, match="timed out"):
                await lines.call(address, "/", b"x" * MUCH, PATIENT)


async def test_a_server_that_may_be_silent_may_read_nothing_for_longer() -> None:
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        pytest.skip("this platform has no such bound")
    async with asking(WELL) as (lines, server):
        with closing(await call(lines, server, ReplyTimeouts(math.inf, math.inf))) as line:
            wire: socket.socket = line._transport.get_extra_info("socket")
            told = wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            assert told == NO_ROOM_MS > WATCH["TCP_USER_TIMEOUT"]


async def test_nobody_there_is_told_from_a_failure_of_somebody() -> None:
    async with raw_server() as server:
        pass
    async with open_connections() as lines:
        with pytest.raises(NoConnection) as nobody:
            await lines.call(server.address, "/", b"", PATIENT)
    assert isinstance(nobody.value.os_error, ConnectionRefusedError)


async def test_a_slow_reader_is_not_buried_and_loses_nothing() -> None:
    """The node is kept waiting: it cannot send all while nobody reads."""
    poured, part = list[int](), b"x" * MOST_UNREAD

    def pour() -> Iterator[Step]:
        yield SSE
        for number in range(PARTS):
            poured.append(number)
            yield chunk(part)
        yield END

    async with raw_server(pour()) as server, open_connections() as lines:
        with closing(await call(lines, server)) as line:
            for _ in range(PARTS * 10):
                await asyncio.sleep(0)
            assert len(poured) < PARTS
            assert len(await line.read()) == PARTS * MOST_UNREAD


async def test_a_connection_that_nobody_read_to_its_end_is_not_used_again() -> None:
    """Its reading is paused: whoever called next would wait for nothing."""
    large = chunk(b"x" * (2 * MOST_UNREAD))
    async with asking([SSE, chunk(b"one"), HANG], WELL) as (lines, server):
        line = await call(lines, server)
        line.data_received(large + END)
        assert line.complete
        line.close()
        assert await read(lines, server) == b"onetwo"
        assert server.connections == 2


async def test_what_is_handed_on_at_once_has_a_limit_and_is_all_there_in_the_end() -> None:
    said = bytes(range(256)) * 4096
    async with asking([SSE, HANG]) as (lines, server):
        with closing(await call(lines, server)) as line:
            line.data_received(chunk(said) + chunk(said[:9]) + END)
            parts = [part async for part in _parts(line)]
    assert max(map(len, parts)) == MOST_AT_ONCE
    assert b"".join(parts) == said + said[:9]


async def _parts(line: NodeConnection) -> AsyncGenerator[bytes]:
    while part := await line.read_some():
        yield part
