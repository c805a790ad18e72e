"""A client that leaves, at whatever moment, leaves nothing behind."""

import asyncio
import gc
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec
import pytest

from api.generator import WHOLE, Event, Leg, Tap, TokenEvent
from api.streams import AHEAD
from engine.request import Request
from tests.fakes.http import Client
from tests.fakes.text import byte_level

TOKEN = byte_level().encode("the")
TURNS = 50


class Endless:
    """Says a word whenever it is let; knows what is open."""

    def __init__(self, words: int = 10**9) -> None:
        self.words, self.said, self.opened, self.closed = words, 0, 0, 0
        self.forever = asyncio.Event()

    async def stream(
        self, request: Request, leg: Leg = WHOLE, tap: Tap | None = None
    ) -> AsyncGenerator[Event]:
        assert leg == WHOLE
        self.opened += 1
        try:
            while self.said < self.words:
                self.said += 1
                yield TokenEvent(TOKEN)
                await asyncio.sleep(0)
            await self.forever.wait()
        finally:
            self.closed += 1


class Visitor:
    """One ASGI connection, held by hand: it reads so many messages, and then no more."""

    def __init__(self, door: Endless, reads: int) -> None:
        self.app, self.reads, self.messages = Client(door).app, reads, list[Any]()
        self.gone, self.asked = asyncio.Event(), False
        self.body = b""

    async def visit(self, fields: Mapping[str, object]) -> None:
        self.body = msgspec.json.encode({"prompt": "the", **fields})
        headers = [(b"content-type", b"application/json"), (b"host", b"h")]
        path = "/v1/completions"
        scope: Any = {
            **{"type": "http", "asgi": {}, "http_version": "1.1", "method": "POST"},
            **{"scheme": "http", "path": path, "raw_path": path.encode(), "root_path": ""},
            **{"query_string": b"", "headers": headers, "client": None, "server": None},
        }
        receive: Any = self.receive
        send: Any = self.send
        await self.app(scope, receive, send)

    async def receive(self) -> Mapping[str, object]:
        if self.asked:
            await self.gone.wait()
            return {"type": "http.disconnect"}
        self.asked = True
        return {"type": "http.request", "body": self.body, "more_body": False}

    async def send(self, message: Mapping[str, object]) -> None:
        if len(self.messages) >= self.reads:
            await asyncio.Event().wait()
        self.messages.append(message)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("reads", [0, 1, 5])
async def test_a_client_that_stops_reading_and_then_leaves(reads: int, n: int) -> None:
    door = Endless()
    visitor = Visitor(door, reads)
    visit = asyncio.create_task(visitor.visit({"stream": True, "n": n}))
    for _ in range(TURNS * 20):
        await asyncio.sleep(0)
    assert len(visitor.messages) == reads
    assert door.said <= reads + n * 3 + (AHEAD if n > 1 else 0), "nobody waits for the reader"
    visitor.gone.set()
    await visit
    assert door.closed == n or reads == 0, "once the body has begun, it is closed at once"
    gc.collect()
    for _ in range(TURNS):
        await asyncio.sleep(0)
    assert door.opened == door.closed == n


@pytest.mark.parametrize("words", [0, 3])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_while_it_is_quiet(words: int, stream: bool) -> None:
    door = Endless(words)
    visitor = Visitor(door, 10**9)
    visit = asyncio.create_task(visitor.visit({"stream": stream, "n": 2}))
    for _ in range(TURNS * 20):
        await asyncio.sleep(0)
    assert door.opened == 2
    visitor.gone.set()
    await visit
    assert door.closed == 2


async def test_a_stream_may_be_quiet_for_as_long_as_it_likes() -> None:
    door = Endless(3)
    visitor = Visitor(door, 10**9)
    visitor.app.config["RESPONSE_TIMEOUT"] = 1e-9
    visit = asyncio.create_task(visitor.visit({"stream": True}))
    for _ in range(TURNS * 20):
        await asyncio.sleep(0)
    assert not visit.done()
    visitor.gone.set()
    await visit
