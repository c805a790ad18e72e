"""Serves the text endpoints as a plain ASGI application in front of the Quart app.

Quart's request, response, contexts and tasks are a sixth of what a request costs a proxy.
Access checks, metrics and headers are in RequestHooks, which the Quart app uses as well.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from api.door.limiter import LARGEST_BODY, ConnectionFault
from api.endpoints import EVENTS, JSON, UNBUFFERED, Endpoint, HttpCall, check_type
from api.errors import SERVER_ERROR, ApiError, ErrorBody, body_of
from api.generator import StreamFailed
from api.refusals import error_response, request_id_headers
from api.sse import OUR_MISTAKE, AnyWriter, answer_body, event_stream
from api.taps import Outlet
from proxy.serving.outlet import EXTENSION

Asgi = Callable[[Any, Any, Any], Awaitable[None]]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Pair = tuple[bytes, bytes]
OK, TOO_LARGE = 200, 413
OF_STREAMS = [
    (name.lower().encode(), value.encode())
    for name, value in {"Content-Type": EVENTS, **UNBUFFERED}.items()
]

log = logging.getLogger(__name__)


class RequestHooks(Protocol):
    """Called for each request and each answer: checks access, counts answers, adds headers."""

    def on_request(self, path: str, headers: "AsgiHeaders") -> None:
        """Check the caller's key; raises ApiError."""

    def on_answer(self, path: str, status: int, outer_id: str | None) -> Mapping[str, str]:
        """Called before an answer's head is sent; returns headers to add."""

    def stream_comment(self, headers: "AsgiHeaders") -> bytes:
        """An SSE comment to send before a stream's end; may be empty."""


class ClientConnection(Outlet, Protocol):
    """What our server offers as an ASGI extension, see EXTENSION."""

    def watch_disconnect(self, on_disconnect: Callable[[], None] | None) -> None:
        """Call `on_disconnect` when the client has left; None: stop watching."""


class ClientGone(Exception):
    """The client left before its request was complete or its answer sent."""


class BodyTooLarge(ApiError):
    """The body is larger than LARGEST_BODY."""

    status = TOO_LARGE


class AsgiHeaders:
    """The headers of an ASGI scope, as the protocol Headers."""

    __slots__ = ("_values",)

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._values = dict(reversed(pairs))

    def get(self, name: str, /) -> str | None:
        """See Headers."""
        value = self._values.get(name.lower().encode())
        return None if value is None else value.decode("latin-1")


@dataclass(frozen=True, slots=True)
class TextFront:
    """Answers POST at the paths of `endpoints`; passes everything else on to `app`."""

    app: Asgi
    endpoints: Mapping[str, Endpoint]
    hooks: RequestHooks

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401  ASGI
        """Answer one request."""
        endpoint = None
        if scope["type"] == "http" and scope["method"] == "POST":
            endpoint = self.endpoints.get(scope["path"])
        if endpoint is None:
            await self.app(scope, receive, send)
            return
        headers = AsgiHeaders(scope["headers"])
        offered = (
            scope.get("extensions") or {}
        )  # removed from the scope, as it refers to the scope
        outlet: ClientConnection | None = offered.pop(EXTENSION, None)
        reply = _Reply(self.hooks, scope["path"], headers, HttpCall(headers), send, outlet)
        try:
            self.hooks.on_request(reply.path, headers)
            check_type(headers)
            reply.call.data = await _body(receive)
            with _cancelled_on_disconnect(receive, outlet):
                await _answer(endpoint, reply)
        except ClientGone:
            return
        except (ApiError, StreamFailed) as failure:
            await reply.refuse(failure.status, body_of(failure), failure.retry_after_s)


@dataclass(slots=True)
class _Reply:
    """The answer to one request."""

    hooks: RequestHooks
    path: str
    headers: AsgiHeaders
    call: HttpCall
    send: Send
    outlet: Outlet | None = None
    started: bool = False

    async def stream(self, writer: AnyWriter) -> None:
        """Start with the first event, so that an earlier failure has its own HTTP status."""
        async with aclosing(event_stream(writer, self.outlet, self._comment)) as events:
            async for event in events:
                if not self.started:
                    await self._start(OK, OF_STREAMS)
                await self._send_body(event, last=writer.over)
        if not writer.over:
            await self._send_body(b"", last=True)

    async def send_whole(self, status: int, body: bytes, *more: Pair) -> None:
        """Send a complete answer."""
        length = b"content-length", str(len(body)).encode()
        await self._start(status, [(b"content-type", JSON.encode()), length, *more])
        await self._send_body(body, last=True)

    async def refuse(
        self, status: int, error: ErrorBody, retry_after_s: int | None = None
    ) -> None:
        """Send an error in the format of this path's API."""
        later = [] if retry_after_s is None else [(b"retry-after", str(retry_after_s).encode())]
        error_body = error_response(self.path, status, error, self.call.outer_id)
        await self.send_whole(status, msgspec.json.encode(error_body), *later)

    def _comment(self) -> bytes:
        return self.hooks.stream_comment(self.headers)

    async def _start(self, status: int, headers: Sequence[Pair]) -> None:
        self.started = True
        name = self.call.outer_id
        extra = {
            **self.hooks.on_answer(self.path, status, name),
            **request_id_headers(self.path, name),
        }
        more = [(key.lower().encode(), value.encode("latin-1")) for key, value in extra.items()]
        start = {"type": "http.response.start", "status": status, "headers": [*headers, *more]}
        await self.send(start)

    async def _send_body(self, body: bytes, *, last: bool = False) -> None:
        await self.send({"type": "http.response.body", "body": body, "more_body": not last})


async def _answer(endpoint: Endpoint, reply: _Reply) -> None:
    """Answer; raises ApiError or StreamFailed only before anything was sent."""
    try:
        writer = await endpoint(reply.call)
        if writer.streams:
            await reply.stream(writer)
        else:
            await reply.send_whole(OK, await answer_body(writer))
    except (ApiError, StreamFailed):
        raise
    except Exception:
        if reply.started:
            raise
        log.exception("request_id=%s broke off", reply.call.outer_id)
        await reply.refuse(SERVER_ERROR, OUR_MISTAKE)


async def _body(receive: Receive) -> bytes:
    """The whole request body; raises BodyTooLarge or ClientGone."""
    pieces, size = list[bytes](), 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        piece: bytes = message.get("body", b"")
        pieces.append(piece)
        size += len(piece)
        if size > LARGEST_BODY:
            raise BodyTooLarge(ConnectionFault.LARGE_BODY.message)
        if not message.get("more_body", False):
            return b"".join(pieces)


@contextmanager
def _cancelled_on_disconnect(
    receive: Receive, connection: ClientConnection | None
) -> Iterator[None]:
    """Cancel the block when the client leaves, and raise ClientGone."""
    task, gone = asyncio.current_task(), False
    assert task is not None, "an ASGI server runs each request as one"

    def cancel() -> None:
        nonlocal gone
        gone = True
        task.cancel()

    watcher = connection or _DisconnectWatcher(receive)
    watcher.watch_disconnect(cancel)
    try:
        yield
    except asyncio.CancelledError:
        if gone and not task.uncancel():
            raise ClientGone from None
        raise
    finally:
        watcher.watch_disconnect(None)


@dataclass(slots=True)
class _DisconnectWatcher:
    """For other ASGI servers: a task that waits for `http.disconnect`."""

    receive: Receive
    task: "asyncio.Task[None] | None" = None

    def watch_disconnect(self, on_disconnect: Callable[[], None] | None) -> None:
        """See ClientConnection."""
        if on_disconnect is not None:
            self.task = asyncio.create_task(self._wait(on_disconnect))
        elif self.task is not None:
            self.task.cancel()  # it holds nothing, so its end need not be awaited

    async def _wait(self, on_disconnect: Callable[[], None]) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        on_disconnect()
