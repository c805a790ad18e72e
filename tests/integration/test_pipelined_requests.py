"""Requests that are sent before an earlier one is answered."""

import asyncio
import re
from contextvars import ContextVar
from typing import Any

import pytest

from api.door.protocol import LimitedProtocol
from proxy.serving.corked import CorkedProtocol
from tests.fakes.hostile_http import connect, last
from tests.fakes.serving import serving

PATIENCE_S = 60
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
