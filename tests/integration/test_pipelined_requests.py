"""Requests that are sent before an earlier one is answered."""

import asyncio
import re
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import pytest

from api.door.limiter import ConnectionLimiter
from api.door.protocol import LimitedProtocol
from proxy.serving.corked import CorkedProtocol
from tests.fakes.hostile_http import connect, last, post
from tests.fakes.serving import serving
from tests.fakes.waiting import comes_true

PATIENCE_S = 60
FIRST, SECOND = 1_000, 50_000  # bytes of bodies
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
NOBODY = b"nobody"
caller: ContextVar[bytes] = ContextVar("caller", default=NOBODY)


async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401  ASGI
    """Tells who called, before it is known who does."""
    del receive
    if scope["type"] == "http":
        body = b"<%b>" % caller.get()
        caller.set(b"somebody")
        length = b"content-length", b"%d" % len(body)
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": body})


@pytest.mark.parametrize("kind", [LimitedProtocol, CorkedProtocol])
async def test_none_is_taken_for_one_of_the_caller_before(kind: type[LimitedProtocol]) -> None:
    async with asyncio.timeout(PATIENCE_S), serving(app, kind=kind) as address:
        client = await connect(address)
        await client.send(GET * 3 + last(GET))
        said = await client.rest()
        client.close()
    assert re.findall(rb"<(.*?)>", said) == [NOBODY] * 4


@dataclass
class Patient:
    """Answers with the size of the body, when it is told to."""

    sizes: "asyncio.Queue[int]" = field(default_factory=asyncio.Queue)
    goes: "asyncio.Queue[None]" = field(default_factory=asyncio.Queue)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401  ASGI
        if scope["type"] == "http":
            size, message = 0, dict[str, Any](more_body=True)
            while message["more_body"]:
                message = await receive()
                size += len(message["body"])
            self.sizes.put_nowait(size)
            await self.goes.get()
            length = b"content-length", b"0"
            await send({"type": "http.response.start", "status": 200, "headers": [length]})
            await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize("kind", [LimitedProtocol, CorkedProtocol])
async def test_their_bodies_count_until_they_are_answered(kind: type[LimitedProtocol]) -> None:
    patient, limiter = Patient(), ConnectionLimiter()
    async with asyncio.timeout(PATIENCE_S), serving(patient, limiter, kind) as address:
        client = await connect(address)
        await client.send(post(b"a" * FIRST), last(post(b"b" * SECOND)))
        assert await patient.sizes.get() == FIRST
        await comes_true(lambda: limiter.held_bytes == FIRST + SECOND)
        patient.goes.put_nowait(None)
        assert await patient.sizes.get() == SECOND
        assert limiter.held_bytes == SECOND
        patient.goes.put_nowait(None)
        assert (await client.rest()).count(b" 200 OK") == 2
        client.close()
        assert limiter.held_bytes == 0
