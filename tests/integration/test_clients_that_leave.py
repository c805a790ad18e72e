"""A client that leaves amid its answer ends the work on it, over a real socket."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack

import msgspec
import pytest
from quart import Quart

from api.door.limiter import ConnectionLimiter
from api.endpoints import Endpoint, TextEndpoints
from proxy.serving.corked import CorkedProtocol
from proxy.serving.front import AsgiHeaders, TextFront
from tests.fakes.hostile_http import post
from tests.fakes.serving import serving
from tests.fakes.text import OneToken, served
from tests.fakes.waiting import comes_true

PATH = "/v1/completions"
PATIENCE_S = 60
HI = [{"role": "user", "content": "hi"}]
LARGE = 300_000  # bytes: a server stops reading before it has so many
PIECE = 70_000


class Anybody:
    """RequestHooks that lets everybody in, and counts nothing."""

    def on_request(self, path: str, headers: AsgiHeaders) -> None:
        """See RequestHooks."""

    def on_answer(self, path: str, status: int, outer_id: str | None) -> Mapping[str, str]:
        return {}

    def stream_comment(self, headers: AsgiHeaders) -> bytes:
        return b""


@pytest.mark.parametrize(
    ("size", "at_once", "later"),
    [(1, 1, 0), (LARGE, 1, 0), (1, 3, 0), (1, 1, 2), (LARGE, 2, 0), (LARGE, 1, 1)],
)
@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("said", [{"prompt": "the"}, {"messages": HI}])
async def test_who_leaves_is_not_worked_for(
    said: Mapping[str, object], size: int, at_once: int, later: int, *, streams: bool
) -> None:
    """Neither where more requests wait, which may have arrived with the first, or later."""
    source, model, limiter, app = OneToken(), served(), ConnectionLimiter(), Quart("door")
    fields = {**said, "max_tokens": 9, "stream": streams, "user": "x" * size}
    one = post(msgspec.json.encode(fields))
    data = one * at_once
    texts = TextEndpoints(source, model)
    endpoints: dict[str, Endpoint] = {
        PATH: texts.messages if "messages" in said else texts.completions
    }
    app.asgi_app = TextFront(app.asgi_app, endpoints, Anybody())  # type: ignore[method-assign]
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(PATIENCE_S))
        address = await stack.enter_async_context(serving(app, limiter, CorkedProtocol))
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for place in range(0, len(data), PIECE):
            writer.write(data[place : place + PIECE])
            await writer.drain()
        if streams:
            await reader.readuntil(b"data: ")
        await source.waits.wait()
        before = limiter.held_bytes
        writer.write(one * later)
        await comes_true(lambda: limiter.held_bytes > before or not later)
        writer.close()
        await source.closed.wait()
    model.grammars.close()
