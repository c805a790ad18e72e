"""Each HTTP request from its first byte to its last: begun before the app, told at its end."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from api.trace_context import TRACEPARENT, TRACESTATE, read_trace
from proxy.observing.kept import KeptTimelines
from proxy.observing.telling import comment, server_timing
from proxy.observing.tracing import Tracing
from proxy.timeline.exchange import Exchange, current
from proxy.timeline.trace import Trace

WANTED = "X-Pdserve-Timing"
SERVER_TIMING = "Server-Timing"
NOTHING: Mapping[str, str] = {}
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


def answered(status: int, request_id: str, now: float) -> Mapping[str, str]:
    """The headers of this request's answer are about to leave: what goes with them is all that
    is known by now.
    """
    exchange = current.get()
    if exchange is None:
        return NOTHING
    exchange.status, exchange.request_id = status, request_id
    if not exchange.stories:
        return NOTHING
    return {SERVER_TIMING: server_timing(exchange, now)}


def last_word(wanted: str | None) -> bytes:
    """The rest, at the end of its stream, if the client has asked for that: the timeline is
    complete when all has been said, and nobody reads on after `[DONE]`.
    """
    exchange = current.get()
    if exchange is None or (wanted or "").lower() in NO:
        return b""
    return comment(exchange) if exchange.stories else b""


def _all(headers: Headers, name: str) -> list[str]:
    wanted = name.encode()
    return [value.decode("latin1") for key, value in headers if key == wanted]
