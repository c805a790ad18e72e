"""Each HTTP request from its first byte to its last: begun before the app, told at its end."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from quart import Response

from api.generated import DONE
from api.trace_context import TRACEPARENT, TRACESTATE, read_trace
from proxy.observing.kept import KeptTimelines
from proxy.observing.telling import comment, server_timing
from proxy.observing.tracing import Tracing
from proxy.timeline.exchange import Exchange, current
from proxy.timeline.trace import Trace

WANTED = "X-Pdserve-Timing"
SERVER_TIMING = "Server-Timing"
EVENTS = "text/event-stream"
NO = ("", "0", "false")
Asgi = Callable[[Any, Any, Any], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Exchanges:
    """An ASGI application around another; what is not under one of `paths` passes by."""

    app: Asgi
    paths: tuple[str, ...]
    kept: KeptTimelines
    tracing: Tracing | None = None
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401  ASGI
        """Answer one request."""
        if scope["type"] != "http" or not scope["path"].startswith(self.paths):
            await self.app(scope, receive, send)
            return
        exchange = Exchange(self.clock(), self.wall_clock(), scope["path"])
        context = read_trace(
            _all(scope["headers"], TRACEPARENT), _all(scope["headers"], TRACESTATE)
        )
        if self.tracing is not None:
            exchange.trace = self.tracing.begin(exchange, context)
        elif context is not None:
            exchange.trace = Trace(context)
        current.set(exchange)
        self.kept.begin(exchange)
        try:
            await self.app(scope, receive, send)
        finally:
            exchange.ended = self.clock()
            self.kept.end(exchange)
            if self.tracing is not None:
                self.tracing.end(exchange)

    def answered(self, response: Response, wanted: str | None) -> None:
        """Its headers are about to leave, with all that is known by now; the rest at the end of
        its stream, if the client has asked for that.
        """
        exchange = current.get()
        if exchange is None:
            return
        exchange.status = response.status_code
        exchange.request_id = response.headers.get("X-Request-Id", "")
        if not exchange.stories:
            return
        response.headers[SERVER_TIMING] = server_timing(exchange, self.clock())
        if (wanted or "").lower() not in NO and response.mimetype == EVENTS:
            frames: Any = response.response
            response.response = response.iterable_body_class(_commented(frames, exchange))


async def _commented(frames: Any, exchange: Exchange) -> AsyncGenerator[bytes]:  # noqa: ANN401
    """The timeline is complete when all has been said, and nobody reads on after `[DONE]`."""
    async with frames as body:
        async for frame in body:
            if frame.endswith(DONE):
                yield frame.removesuffix(DONE) + comment(exchange) + DONE
            else:
                yield frame


def _all(headers: Headers, name: str) -> list[str]:
    wanted = name.encode()
    return [value.decode("latin1") for key, value in headers if key == wanted]
