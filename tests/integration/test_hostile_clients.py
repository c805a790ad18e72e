"""What hostile clients get over real sockets, and what others notice of them: nothing."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from quart import Quart

from api.door.limiter import ConnectionFault, ConnectionLimiter, DoorLimits
from api.generator import WHOLE, Event, Leg, Tap, TokenEvent
from api.routes import openai_routes
from engine.request import FinishReason, Request
from tests.fakes.hostile_http import LINE, connect, head, last, post, stuck
from tests.fakes.serving import serving
from tests.fakes.text import served
from tests.fakes.waiting import comes_true

PATIENCE_S = 60
NO_TIME = DoorLimits(head_s=0.0, body_s=0.0, write_s=0.0)
GOOD = post(b'{"prompt": "the", "max_tokens": 1}')
ENDLESS = post(b'{"prompt": "the", "max_tokens": 100, "stream": true}')
FRAME = 2000  # tokens


class Door:
    """Answers at once; a prompt of which more is wanted, for ever."""

    def __init__(self) -> None:
        self.said = 0
        self.closed = asyncio.Event()

    async def stream(
        self, request: Request, leg: Leg = WHOLE, tap: Tap | None = None
    ) -> AsyncGenerator[Event]:
        assert leg == WHOLE
        try:
            while request.sampling.max_tokens > 1:
                self.said += 1
                yield TokenEvent((5,) * FRAME)
                await asyncio.sleep(0)
            yield TokenEvent((5,), FinishReason.LENGTH)
        finally:
            self.closed.set()


@asynccontextmanager
async def door(
    limits: DoorLimits | None = None,
) -> AsyncGenerator[tuple[str, ConnectionLimiter, Door]]:
    """Its limiter sweeps when the test says so."""
    limiter, app, generator = ConnectionLimiter(limits or DoorLimits()), Quart("door"), Door()
    model = served()
    app.register_blueprint(openai_routes(generator, model))
    app.config["MAX_CONTENT_LENGTH"] = limiter.limits.body_bytes
    async with asyncio.timeout(PATIENCE_S), serving(app, limiter) as address:
        yield address, limiter, generator
        await comes_true(lambda: not limiter.connections)
        assert (limiter.held_bytes, len(limiter.heads), len(limiter.bodies)) == (0, 0, 0)
    model.grammars.close()


async def _asked(address: str) -> int:
    async with aiohttp.ClientSession() as session:
        body = {"prompt": "the", "max_tokens": 1}
        async with session.post(f"http://{address}/v1/completions", json=body) as answer:
            return answer.status


CHUNKED = head(b"Transfer-Encoding: chunked")
REFUSED: dict[str, tuple[int | None, bytes]] = {
    "a body that says it is 100 MB": (413, head(b"Content-Length: 100000000")),
    "a chunk of 100 MB": (413, CHUNKED + b"5f5e100\r\n" + b"x" * 17_000_000),
    "chunks of one byte": (413, CHUNKED + b"1\r\nx\r\n" * 70_000),
    "a chunk with an endless extension": (413, CHUNKED + b"1;" + b"x" * 34_000_000),
    "trailers without end": (431, CHUNKED + b"0\r\n" + b"a: b\r\n" * 200),
    "many headers": (431, head(*[b"a: b"] * 200)),
    "large headers": (431, head(*[b"a: " + b"b" * 8000] * 10)),
    "one line without end": (431, LINE + b"a: " + b"b" * 300_000),
    "a path without end": (431, b"GET /" + b"a" * 300_000),
    "another protocol": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "noise": (400, bytes(range(256)) * 4),
    "two lengths": (400, head(b"Content-Length: 3", b"Content-Length: 4") + b"abcd"),
    "a length and chunks": (400, head(b"Content-Length: 3", b"Transfer-Encoding: chunked")),
    "a length that is none": (400, head(b"Content-Length: -1")),
    "a path that is no text": (400, b"GET /\xff\xfe HTTP/1.1\r\nHost: a\r\n\r\n"),
    "a compressed body": (415, last(post(b"{}", b"Content-Encoding: gzip"))),
    "deep JSON": (400, last(post(b"[" * 10_000 + b"]" * 10_000))),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_it_is_refused_and_others_are_served(what: str) -> None:
    status, sent = REFUSED[what]
    async with door() as (address, _keeper, _):
        client = await connect(address)
        sending = asyncio.create_task(client.send(sent))
        assert await client.status() == status
        await sending
        assert await _asked(address) == 200
        client.close()


SLOW: dict[str, tuple[int | None, bytes, ConnectionFault | None]] = {
    "a head": (408, b"GET / HT", ConnectionFault.SLOW_HEAD),
    "nothing": (None, b"", ConnectionFault.IDLE),
    "the end of a line": (None, b"\r\n", ConnectionFault.IDLE),
    "a body": (408, head(b"Content-Length: 9") + b"{", None),
}


@pytest.mark.parametrize("what", SLOW)
@pytest.mark.parametrize("first", [b"", GOOD])
async def test_what_drips_is_cut_when_its_time_is_over(what: str, first: bytes) -> None:
    """On a new connection, and on one that was answered."""
    status, data, fault = SLOW[what]
    if first and not data:
        return  # the time that a connection is kept for another request is the server's
    async with door(NO_TIME) as (address, limiter, _):
        client = await connect(address)
        if first:
            await client.send(first)
            assert await client.answer() == 200
            await comes_true(lambda: not limiter.heads)
        await client.send(data)
        if fault:
            await comes_true(lambda: [one.idle for one in limiter.heads] == [fault])
        else:
            await comes_true(lambda: bool(limiter.bodies))
        limiter.sweep(asyncio.get_running_loop().time() + 1)
        assert await client.status() == status
        assert limiter.refused == {(fault or ConnectionFault.SLOW_BODY).reason: 1}
        client.close()


async def test_a_body_that_is_refused_on_its_way_is_read_to_its_end() -> None:
    """A client that reads no answer before it has sent all would otherwise send for ever."""
    chunk = b"11170\r\n" + b"x" * 70_000 + b"\r\n"  # above uvicorn's mark: it reads no more
    async with door(DoorLimits(body_bytes=100_000)) as (address, _keeper, _):
        client = await connect(address)
        await client.send(CHUNKED, chunk + chunk, *[chunk] * 300, b"0\r\n\r\n")
        assert await client.status() == 413
        client.close()


async def test_who_stays_after_a_refusal_is_cut() -> None:
    async with door(NO_TIME) as (address, limiter, _):
        client = await connect(address)
        await client.send(head(b"Content-Length: 9") + b"{")
        await comes_true(lambda: bool(limiter.bodies))
        limiter.sweep(asyncio.get_running_loop().time() + 1)
        assert await client.status() == 408
        limiter.sweep(asyncio.get_running_loop().time() + 2)
        await comes_true(lambda: not limiter.connections)
        assert limiter.refused == {"slow_body": 1}
        client.close()


async def test_a_long_answer_is_not_cut_for_its_clients_silence() -> None:
    async with door(NO_TIME) as (address, limiter, generator):
        client = await connect(address)
        await client.send(ENDLESS, b"\r\n")
        await client.reader.readuntil(b"data: ")
        limiter.sweep(asyncio.get_running_loop().time() + 1)
        limiter.writes.clear()
        before = generator.said
        while generator.said < before + 3:
            await client.reader.read(65536)
        assert not limiter.refused
        client.close()
        await generator.closed.wait()


async def test_a_client_that_takes_nothing_stops_its_nodes_and_is_cut_at_last() -> None:
    async with door(DoorLimits(write_s=5.0)) as (address, limiter, generator):
        client = await stuck(address, ENDLESS)
        with client:
            await comes_true(lambda: bool(limiter.writes))
            await _still(generator)
            (connection,) = limiter.writes
            assert connection.unsent() < 300_000, "one frame above the mark"
            limiter.sweep(asyncio.get_running_loop().time() + 1)
            assert not limiter.refused
            limiter.sweep(asyncio.get_running_loop().time() + 20)
            await generator.closed.wait()
            assert limiter.refused == {"slow_client": 1}


async def _still(generator: Door) -> None:
    """It is not asked for more any longer: a hundred turns pass, and nothing is said."""
    before = -1
    while before != generator.said:
        before = generator.said
        for _ in range(100):
            await asyncio.sleep(0)


async def test_requests_in_a_row_are_answered() -> None:
    async with door() as (address, _keeper, _):
        client = await connect(address)
        await client.send(GOOD * 5)
        for _ in range(5):
            assert await client.answer() == 200
        client.close()


@pytest.mark.parametrize("count", [17, 18, 20, 1000])
async def test_of_requests_sent_at_once_as_many_as_may_wait_are_answered(count: int) -> None:
    """One is answered, 16 wait, and the next is refused in its turn."""
    async with door() as (address, limiter, _):
        client = await connect(address)
        await client.send(GOOD * (count - 1), last(GOOD))
        said = await client.rest()
        assert said.count(b"HTTP/1.1 200") == 17
        assert said.count(b"HTTP/1.1 400") == (count > 17)
        assert limiter.refused == ({"pipelined": 1} if count > 17 else {})
        client.close()


async def test_a_request_too_many_does_not_end_the_answers_before_it() -> None:
    async with door(DoorLimits(head_s=0.0, body_s=0.0)) as (address, limiter, generator):
        client = await connect(address)
        await client.send(ENDLESS, GOOD * 20, b"noise")
        await client.reader.readuntil(b"data: ")
        await comes_true(lambda: bool(limiter.refused))
        limiter.sweep(asyncio.get_running_loop().time() + 1)
        before = generator.said
        while generator.said < before + 3:
            assert await client.reader.read(65536)
        assert limiter.refused == {"pipelined": 1}
        client.close()


async def test_noise_behind_a_request_ends_its_answer_and_nobody_elses() -> None:
    async with door() as (address, limiter, generator):
        client, other = await connect(address), await connect(address)
        await other.send(ENDLESS)
        await other.reader.readuntil(b"data: ")
        await client.send(ENDLESS, b"\0\1\2\r\n\r\n" * 10)
        said = await client.rest()
        assert b"HTTP/1.1 400" not in said[10:], "never within another answer"
        before = generator.said
        while generator.said < before + 3:
            await other.reader.read(65536)
        assert limiter.refused == {"malformed": 1}
        client.close()
        other.close()


@pytest.mark.parametrize("begin", ["FOO /v1/models", "get /v1/models", "CONNECT a.b:443"])
async def test_an_unknown_method_is_refused_by_its_name(begin: str) -> None:
    async with door() as (address, limiter, _):
        client = await connect(address)
        await client.send(begin.encode() + b" HTTP/1.1\r\nHost: a\r\n\r\n")
        said = await client.rest()
        assert said.startswith(b"HTTP/1.1 501 Not Implemented\r\n")
        assert (
            f'"{begin.split()[0]} is no method of HTTP that this server knows"'.encode() in said
        )
        assert limiter.refused == {"unknown_method": 1}
        client.close()


async def test_a_client_that_closes_its_half_has_left() -> None:
    async with door() as (address, limiter, generator):
        client = await connect(address)
        await client.send(ENDLESS)
        client.writer.write_eof()
        await client.rest()
        await generator.closed.wait()
        assert not limiter.refused
        client.close()


async def test_bodies_of_all_together_have_a_limit() -> None:
    limits = DoorLimits(all_bodies=100_000)
    half = head(b"Content-Length: 90000") + b"x" * 60_000
    async with door(limits) as (address, limiter, _):
        first, second = await connect(address), await connect(address)
        await first.send(half)
        await comes_true(lambda: limiter.held_bytes == 60_000)
        await second.send(half)
        said = await second.rest()
        assert said.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in said
        first.close()
        await comes_true(lambda: limiter.held_bytes == 0)
        assert await _asked(address) == 200
        second.close()


async def test_of_too_many_connections_the_idle_ones_go() -> None:
    async with door(DoorLimits(connections=20)) as (address, limiter, _):
        idle = [await connect(address) for _ in range(50)]
        assert await _asked(address) == 200
        await comes_true(lambda: len(limiter.connections) <= 20)
        assert limiter.refused["crowded"] >= 30
        for client in idle:
            client.close()
