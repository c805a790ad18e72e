"""uvicorn's HTTP protocol with limits: it has none of its own for time, heads and bodies."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from api.door.limiter import ConnectionFault, ConnectionLimiter
from api.door.methods import unknown_method
from api.door.refusal import Pair, refusal
from api.door.tcp_info import unacknowledged_s
from api.door.unchunked import OLD, send_unchunked
from api.door.upgrades import body_framing

LENGTH = b"content-length"
ExtraHeaders = Callable[[str, Sequence[Pair]], Sequence[Pair]]
"""Further headers of a refusal, by the path and the headers of the refused request."""
UNSENT_BYTES = 64 << 10  # the kernel takes up to 4 MiB for a client that takes nothing


class ParsingAborted(Exception):
    """Raised in a parser callback, to stop parsing."""

    def __init__(self, fault: ConnectionFault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class LimitedProtocol(HttpToolsProtocol):
    """One connection. After a fault it answers if it still can, and closes: for a short while
    the client may still read the answer, while anything it sends is dropped. Requests that came
    before one too many are answered first.
    """

    def __init__(
        self,
        limiter: ConnectionLimiter,
        beside: ExtraHeaders | None,
        **given: Any,  # noqa: ANN401  uvicorn's
    ) -> None:
        super().__init__(**given)
        self.limiter, self._beside = limiter, beside
        self._ignores_input = False
        self._one_too_many = False  # to be refused when all before it are answered
        self._begun = False  # a head has begun
        self._within = False  # inside a request whose head is complete
        self._large = False  # by its own headers
        self._fed = 0  # bytes in the last piece of data
        self._wire = 0  # bytes received since the request began
        self._headers = self._pieces = self._body = self._held = 0
        self._current: RequestResponseCycle | None = None  # of the request being answered
        self._framing = b""  # of a body that the parser has not been told of yet
        self._method = ""  # that the parser does not know

    @property
    def closing(self) -> bool:
        """See LimitedConnection."""
        return self.transport.is_closing()

    @property
    def idle(self) -> ConnectionFault | None:
        """See LimitedConnection."""
        if self._begun:
            return ConnectionFault.SLOW_HEAD
        refused = self._ignores_input and not self._one_too_many
        return None if self._answering and not refused else ConnectionFault.IDLE

    def unsent(self) -> int:
        """See LimitedConnection."""
        return self.transport.get_write_buffer_size()

    def unacknowledged_s(self) -> float:
        """See LimitedConnection."""
        wire = self.transport.get_extra_info("socket")
        return 0.0 if wire is None else unacknowledged_s(wire)  # TLS has just ended

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to track the connection."""
        super().connection_made(transport)
        wire: socket.socket = transport.get_extra_info("socket")
        if wire.family in (socket.AF_INET, socket.AF_INET6):
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        self.limiter.add(self, self._now())

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop tracking it, and tell the application: uvicorn tells only the last request."""
        self._release()
        self.limiter.remove(self)
        if self._current is not None and not self._current.response_complete:
            self._current.disconnected = True
            self._current.message_event.set()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not read what was written."""
        super().pause_writing()
        self.limiter.await_drain(self, self._now())

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        self.limiter.writes.pop(self, None)

    def data_received(self, data: bytes) -> None:
        """Parse what the client sent, or refuse it."""
        if self._ignores_input:
            return
        self._unset_keepalive_if_required()
        self._fed = len(data)
        self._wire += self._fed
        if not self._within:
            self.limiter.heads.setdefault(self, self._now())
        try:
            self._parse(data)
            self._check_sizes()
        except httptools.HttpParserError as error:
            cause, fault = error.__context__, ConnectionFault.MALFORMED
            if not self._within and (found := unknown_method(data)):
                (self._method, self.url), fault = found, ConnectionFault.UNKNOWN_METHOD
            self.end(cause.fault if isinstance(cause, ParsingAborted) else fault)
        except ParsingAborted as refused:
            self.end(refused.fault)

    def _parse(self, data: bytes) -> None:
        """Parse on behind a request that asks for another protocol, where the parser stops."""
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as stopped:
                data = data[stopped.args[0] :]
                if self._framing:
                    self.parser.feed_data(self._framing)
                    self._framing = b""
            else:
                return

    def on_message_begin(self) -> None:
        """A head begins."""
        if self._framing:
            return
        self._begun, self._wire = True, self._fed
        self._headers = self._pieces = self._body = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """The path of the request."""
        if not self._framing:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header line; trailers come here too."""
        if self._framing:
            return
        limits = self.limiter.limits
        self._headers += 1
        if self._headers > limits.headers:
            raise ParsingAborted(ConnectionFault.LARGE_HEAD)
        sized = len(name) == len(LENGTH) and name.lower() == LENGTH
        if sized and int(value) > limits.body_bytes:
            self._large = True
        super().on_header(name, value.rstrip(b" \t"))  # as HTTP says; the parser keeps it

    def on_headers_complete(self) -> None:
        """The head is complete: the request starts."""
        if self._framing:
            return
        limits = self.limiter.limits
        if sum(len(name) + len(value) for name, value in self.headers) > limits.head_bytes:
            raise ParsingAborted(ConnectionFault.LARGE_HEAD)
        if self._large:  # said now: what is told beside it may follow from a later line
            raise ParsingAborted(ConnectionFault.LARGE_BODY)
        if len(self.pipeline) >= limits.pipelined:
            raise ParsingAborted(ConnectionFault.PIPELINED)
        super().on_headers_complete()
        self.scope["path"] = "/" + self.scope["path"].lstrip("/")  # as Quart reads it
        if self.scope["http_version"] == OLD:
            send_unchunked(self.cycle)
        self._begun, self._within = False, True
        self.limiter.heads.pop(self, None)
        if not self.pipeline:
            self._current = self.cycle
            self.limiter.bodies[self] = self._now()
        self._read_on()
        self._framing = body_framing(self.headers) if self.parser.should_upgrade() else b""

    def on_body(self, body: bytes) -> None:
        """A piece of the request's body arrived."""
        limiter = self.limiter
        self._pieces += 1
        self._body += len(body)
        if self._pieces > limiter.limits.body_pieces or self._body > limiter.limits.body_bytes:
            raise ParsingAborted(ConnectionFault.LARGE_BODY)
        if self._answering:
            self._held += len(body)
            limiter.held_bytes += len(body)
            if limiter.held_bytes > limiter.limits.all_bodies:
                raise ParsingAborted(ConnectionFault.FULL)
        super().on_body(body)
        self._read_on()

    def on_message_complete(self) -> None:
        """The request is complete; it may already have been answered."""
        if self._framing:
            return
        self._within = False
        self.limiter.bodies.pop(self, None)
        super().on_message_complete()
        if not self._answering:
            self.limiter.heads.setdefault(self, self._now())

    def on_response_complete(self) -> None:
        """Go on with the next pipelined request, if there is one."""
        self._release(sum(len(cycle.body) for cycle, _ in self.pipeline))
        if self.pipeline:
            self._current = self.pipeline[-1][0]
        Context().run(super().on_response_complete)  # the next one sees nothing of this one's
        if self._within and self._answering:
            self.limiter.bodies[self] = self._now()
        if self._one_too_many and not self._answering and not self.closing:
            self._one_too_many = False
            self._refuse(ConnectionFault.PIPELINED)

    def end(self, fault: ConnectionFault) -> None:
        """See LimitedConnection."""
        if fault is ConnectionFault.PIPELINED:  # raised while there are answers due
            self._one_too_many, self._begun = True, False
            self.limiter.stop_waiting(self)
        elif self._ignores_input or fault.status is None or not self._can_answer:
            self.transport.abort()
        else:
            self._refuse(fault)
        if not self._ignores_input:
            self.limiter.refused[fault.reason] += 1
            self._ignores_input = True

    def _refuse(self, fault: ConnectionFault) -> None:
        """Send the refusal, unless the request was answered, and read no more."""
        self.limiter.stop_waiting(self)
        self._release()
        self._unset_keepalive_if_required()
        answered = self._within and not self._answering
        if self._answering:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if fault.status is not None and not answered:
            path = self.url.partition(b"?")[0].decode("latin-1")
            beside = self._beside(path, self.headers) if self._beside else ()
            message = fault.message.format(self._method)
            self.transport.write(refusal(path, fault.status, message, beside))
        self.flow.resume_reading()  # or a client that is still sending would not come to read
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.limiter.heads[self] = self._now()
        else:
            self.transport.close()

    @property
    def _answering(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is not None and not cycle.response_complete

    @property
    def _can_answer(self) -> bool:
        """Whether no response has been started, and no earlier one is due."""
        return not self.pipeline and not (self._answering and self.cycle.response_started)

    def _check_sizes(self) -> None:
        """Check the sizes of unfinished parts too: a long line, chunks with long extensions."""
        limits = self.limiter.limits
        if self._begun and self._wire > limits.head_bytes:
            raise ParsingAborted(ConnectionFault.LARGE_HEAD)
        if self._within and self._wire > 2 * limits.body_bytes:
            raise ParsingAborted(ConnectionFault.LARGE_BODY)

    def _read_on(self) -> None:
        """Read on while requests wait, or nobody would see the client leave."""
        if 0 < len(self.pipeline) < self.limiter.limits.pipelined:
            self.flow.resume_reading()

    def _release(self, kept: int = 0) -> None:
        """Count the bodies as dropped, except those of requests that wait for their turn."""
        self.limiter.held_bytes -= self._held - kept
        self._held = kept

    def _now(self) -> float:
        return self.loop.time()


def limited_protocol(
    limiter: ConnectionLimiter,
    kind: type[LimitedProtocol] = LimitedProtocol,
    beside: ExtraHeaders | None = None,
) -> type[asyncio.Protocol]:
    """The protocol factory for uvicorn's `http` option."""
    return cast("type[asyncio.Protocol]", partial(kind, limiter, beside))
