"""The endpoints of text as a plain ASGI application before the one for all the rest.

A framework's request, response, contexts and tasks are a sixth of what a request costs a
proxy. Who may call, what is counted and what errors look like is not decided here: that is
the watch's, who watches over both applications.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from api.door.keeper import LARGEST_BODY, Fault
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


class Watch(Protocol):
    """Lets in who may, and counts what they are answered."""

    def enter(self, path: str, headers: "Fields") -> None:
        """Raises ApiError."""

    def leave(self, path: str, status: int, outer_id: str | None) -> Mapping[str, str]:
        """An answer is about to begin; what is to be said in its head."""

    def comment(self, headers: "Fields") -> bytes:
        """What a stream tells of itself before its end, if it was asked to."""


class Connection(Outlet, Protocol):
    """What a server may offer beside ASGI, see EXTENSION."""

    def watch(self, left: Callable[[], None] | None) -> None:
        """`left` is called once the client has left, from now on; None: nobody is."""


class Gone(Exception):
    """The client has left before its request was whole."""


class TooLarge(ApiError):
    """The body is larger than any may be."""

    status = TOO_LARGE


class Fields:
    """The headers of an ASGI scope; see Headers."""

    __slots__ = ("_values",)

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._values = dict(reversed(pairs))

    def get(self, name: str, /) -> str | None:
        """See Headers."""
        value = self._values.get(name.lower().encode())
        return None if value is None else value.decode("latin-1")


@dataclass(frozen=True, slots=True)
class TextFront:
    """Answers POST at the paths of `endpoints`; all else is for `app`."""

    app: Asgi
    endpoints: Mapping[str, Endpoint]
    watch: Watch

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401  ASGI
        """Answer one request."""
        endpoint = None
        if scope["type"] == "http" and scope["method"] == "POST":
            endpoint = self.endpoints.get(scope["path"])
        if endpoint is None:
            await self.app(scope, receive, send)
            return
        headers = Fields(scope["headers"])
        offered = scope.get("extensions") or {}  # which knows its scope: taken out, none stays
        outlet: Connection | None = offered.pop(EXTENSION, None)
        reply = _Reply(self.watch, scope["path"], headers, HttpCall(headers), send, outlet)
        try:
            self.watch.enter(reply.path, headers)
            check_type(headers)
            reply.call.data = await _body(receive)
            with _while_there(receive, outlet):
                await _answer(endpoint, reply)
        except Gone:
            return
        except (ApiError, StreamFailed) as failure:
            await reply.refuse(failure.status, body_of(failure), failure.retry_after_s)


@dataclass(slots=True)
class _Reply:
    """What is sent to one client."""

    watch: Watch
    path: str
    headers: Fields
    call: HttpCall
    send: Send
    outlet: Outlet | None = None
    begun: bool = False

    async def stream(self, writer: AnyWriter) -> None:
        """Begins when there is something to say: what fails until then has a status."""
        async with aclosing(event_stream(writer, self.outlet, self._comment)) as said:
            async for event in said:
                if not self.begun:
                    await self._begin(OK, OF_STREAMS)
                await self._more(event, last=writer.over)
        if not writer.over:
            await self._more(b"", last=True)

    async def say(self, status: int, body: bytes, *more: Pair) -> None:
        """A whole answer."""
        length = b"content-length", str(len(body)).encode()
        await self._begin(status, [(b"content-type", JSON.encode()), length, *more])
        await self._more(body, last=True)

    async def refuse(
        self, status: int, error: ErrorBody, retry_after_s: int | None = None
    ) -> None:
        """An error, in the form that the clients of this path know."""
        later = [] if retry_after_s is None else [(b"retry-after", str(retry_after_s).encode())]
        told = error_response(self.path, status, error, self.call.outer_id)
        await self.say(status, msgspec.json.encode(told), *later)

    def _comment(self) -> bytes:
        return self.watch.comment(self.headers)

    async def _begin(self, status: int, headers: Sequence[Pair]) -> None:
        self.begun = True
        name = self.call.outer_id
        said = {
            **self.watch.leave(self.path, status, name),
            **request_id_headers(self.path, name),
        }
        more = [(key.lower().encode(), value.encode("latin-1")) for key, value in said.items()]
        start = {"type": "http.response.start", "status": status, "headers": [*headers, *more]}
        await self.send(start)

    async def _more(self, body: bytes, *, last: bool = False) -> None:
        await self.send({"type": "http.response.body", "body": body, "more_body": not last})


async def _answer(endpoint: Endpoint, reply: _Reply) -> None:
    """Raises ApiError or StreamFailed, before anything was sent."""
    try:
        writer = await endpoint(reply.call)
        if writer.streams:
            await reply.stream(writer)
        else:
            await reply.say(OK, await answer_body(writer))
    except (ApiError, StreamFailed):
        raise
    except Exception:
        if reply.begun:
            raise
        log.exception("request_id=%s broke off", reply.call.outer_id)
        await reply.refuse(SERVER_ERROR, OUR_MISTAKE)


async def _body(receive: Receive) -> bytes:
    """All of it; raises TooLarge, or Gone."""
    pieces, size = list[bytes](), 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        piece: bytes = message.get("body", b"")
        pieces.append(piece)
        size += len(piece)
        if size > LARGEST_BODY:
            raise TooLarge(Fault.LARGE_BODY.message)
        if not message.get("more_body", False):
            return b"".join(pieces)


@contextmanager
def _while_there(receive: Receive, connection: Connection | None) -> Iterator[None]:
    """What is done within is cancelled when the client leaves, and Gone raised."""
    task, gone = asyncio.current_task(), False
    assert task is not None, "an ASGI server runs each request as one"

    def cancel() -> None:
        nonlocal gone
        gone = True
        task.cancel()

    watch = connection or _Received(receive)
    watch.watch(cancel)
    try:
        yield
    except asyncio.CancelledError:
        if gone and not task.uncancel():
            raise Gone from None
        raise
    finally:
        watch.watch(None)


@dataclass(slots=True)
class _Received:
    """Watches by a task: an ASGI server has no other way of its own to say who has left."""

    receive: Receive
    task: "asyncio.Task[None] | None" = None

    def watch(self, left: Callable[[], None] | None) -> None:
        """See Connection."""
        if left is not None:
            self.task = asyncio.create_task(self._tell(left))
        elif self.task is not None:
            self.task.cancel()  # it holds nothing, so nobody need wait for its end

    async def _tell(self, left: Callable[[], None]) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        left()
