"""ASGI middleware that begins and ends the timeline of each HTTP request."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from api.trace_context import TRACEPARENT, TRACESTATE, read_trace
from proxy.observing.rendering import server_timing, timeline_sse_comment
from proxy.observing.timeline_store import TimelineStore
from proxy.observing.tracing import Tracing
from proxy.timeline.exchange import HttpExchange, current
from proxy.timeline.trace import Trace

TIMING_HEADER = "X-Pdserve-Timing"
SERVER_TIMING = "Server-Timing"
NOTHING: Mapping[str, str] = {}
NO = ("", "0", "false")
Asgi = Callable[[Any, Any, Any], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class TimelineMiddleware:
    """Around the whole application; requests not under one of `paths` pass through."""

    app: Asgi
    paths: tuple[str, ...]
    kept: TimelineStore
    tracing: Tracing | None = None
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401  ASGI
        """Answer one request."""
        if scope["type"] != "http" or not scope["path"].startswith(self.paths):
            await self.app(scope, receive, send)
            return
        exchange = HttpExchange(self.clock(), self.wall_clock(), scope["path"])
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
            exchange.choices.clear()  # connections that were opened here keep this context


def record_answer(status: int, request_id: str, now: float) -> Mapping[str, str]:
    """Called before the answer's headers are sent; returns the Server-Timing header, with the
    stages known by now.
    """
    exchange = current.get()
    if exchange is None:
        return NOTHING
    exchange.status, exchange.request_id = status, request_id
    if not exchange.choices:
        return NOTHING
    return {SERVER_TIMING: server_timing(exchange, now)}


def timeline_comment(wanted: str | None) -> bytes:
    """The timeline as an SSE comment if the client wants it (`TIMING_HEADER`), else nothing.

    To be sent after all tokens but before `[DONE]`, after which clients stop reading.
    """
    exchange = current.get()
    if exchange is None or (wanted or "").lower() in NO:
        return b""
    return timeline_sse_comment(exchange) if exchange.choices else b""


def _all(headers: Headers, name: str) -> list[str]:
    wanted = name.encode()
    return [value.decode("latin1") for key, value in headers if key == wanted]
