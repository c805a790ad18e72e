"""uvicorn's HTTP protocol with limits: it has none of its own for time, heads and bodies."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from api.door.hosts import unheard_s
from api.door.keeper import Fault, Keeper
from api.errors import error_body
from api.refusals import error_response

LENGTH = b"content-length"
Pair = tuple[bytes, bytes]
Beside = Callable[[str, Sequence[Pair]], Sequence[Pair]]
"""The headers that a refusal has beside its own, by the path and the headers of its request."""
UNSENT_BYTES = 64 << 10  # the kernel takes up to 4 MiB for a client that takes nothing


class Refused(Exception):
    """Raised within the parser, to stop it."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class CarefulProtocol(HttpToolsProtocol):
    """One connection. A fault is answered, if there is an answer, and the connection closed:
    for a while its client may still read that, and what it sends is dropped.
    """

    def __init__(
        self,
        keeper: Keeper,
        beside: Beside | None,
        **given: Any,  # noqa: ANN401  uvicorn's
    ) -> None:
        super().__init__(**given)
        self.keeper, self._beside = keeper, beside
        self._deaf = False
        self._begun = False  # a head
        self._within = False  # a request whose head is there
        self._large = False  # by its own word
        self._fed = 0  # bytes of the last piece of data
        self._wire = 0  # bytes since the request began
        self._headers = self._pieces = self._body = self._held = 0

    @property
    def closing(self) -> bool:
        """See Connection."""
        return self.transport.is_closing()

    @property
    def idle(self) -> Fault | None:
        """See Connection."""
        if self._begun:
            return Fault.SLOW_HEAD
        return None if self._answering else Fault.IDLE

    def unsent(self) -> int:
        """See Connection."""
        return self.transport.get_write_buffer_size()

    def unheard_s(self) -> float:
        """See Connection."""
        return unheard_s(self.transport.get_extra_info("socket"))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there."""
        super().connection_made(transport)
        wire: socket.socket = transport.get_extra_info("socket")
        if wire.family in (socket.AF_INET, socket.AF_INET6):
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        self.keeper.enter(self, self._now())

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._release()
        self.keeper.leave(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """It does not take what there is."""
        super().pause_writing()
        self.keeper.expect_reading(self, self._now())

    def resume_writing(self) -> None:
        """It does again."""
        super().resume_writing()
        self.keeper.writes.pop(self, None)

    def data_received(self, data: bytes) -> None:
        """It says something; whatever that is, it is taken in or refused."""
        if self._deaf:
            return
        self._unset_keepalive_if_required()
        self._fed = len(data)
        self._wire += self._fed
        if not self._within:
            self.keeper.heads.setdefault(self, self._now())
        try:
            self.parser.feed_data(data)
            self._weigh()
        except httptools.HttpParserUpgrade:
            pass  # nothing else is spoken here; what it asked for is answered as HTTP
        except httptools.HttpParserError as error:
            cause = error.__context__
            self.end(cause.fault if isinstance(cause, Refused) else Fault.MALFORMED)
        except Refused as refused:
            self.end(refused.fault)

    def on_message_begin(self) -> None:
        """A head begins."""
        self._begun, self._wire = True, self._fed
        self._headers = self._pieces = self._body = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A line of it; trailers come by here too."""
        limits = self.keeper.limits
        self._headers += 1
        if self._headers > limits.headers:
            raise Refused(Fault.LARGE_HEAD)
        sized = len(name) == len(LENGTH) and name.lower() == LENGTH
        if sized and int(value) > limits.body_bytes:
            self._large = True
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is there: work on the request begins."""
        limits = self.keeper.limits
        if sum(len(name) + len(value) for name, value in self.headers) > limits.head_bytes:
            raise Refused(Fault.LARGE_HEAD)
        if self._large:  # said now: what is told beside it may follow from a later line
            raise Refused(Fault.LARGE_BODY)
        if len(self.pipeline) >= limits.pipelined:
            raise Refused(Fault.PIPELINED)
        super().on_headers_complete()
        self._begun, self._within = False, True
        self.keeper.heads.pop(self, None)
        if not self.pipeline:  # else nobody reads on for now
            self.keeper.bodies[self] = self._now()

    def on_body(self, body: bytes) -> None:
        """A piece of its body."""
        keeper = self.keeper
        self._pieces += 1
        self._body += len(body)
        if self._pieces > keeper.limits.body_pieces or self._body > keeper.limits.body_bytes:
            raise Refused(Fault.LARGE_BODY)
        if self._answering:
            self._held += len(body)
            keeper.held_bytes += len(body)
            if keeper.held_bytes > keeper.limits.all_bodies:
                raise Refused(Fault.FULL)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """All of it is there; it may have been answered long since."""
        self._within = False
        self.keeper.bodies.pop(self, None)
        super().on_message_complete()
        if not self._answering:
            self.keeper.heads.setdefault(self, self._now())

    def on_response_complete(self) -> None:
        """The next one that was sent already is worked on, if there is one."""
        self._release()
        super().on_response_complete()
        if self._within and self._answering:
            self.keeper.bodies[self] = self._now()

    def end(self, fault: Fault) -> None:
        """See Connection."""
        if self._deaf or fault.status is None or not self._can_answer:
            self.transport.abort()
        else:
            self._refuse(fault.status, fault.message)
        if not self._deaf:
            self.keeper.refused[fault.reason] += 1
            self._deaf = True

    def _refuse(self, status: int, message: str) -> None:
        """Say it, unless this request was answered, and read no more."""
        self.keeper.expect_nothing(self)
        self._release()
        self._unset_keepalive_if_required()
        if self._answering:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        elif self._within:
            message = ""
        if message:
            path = self.url.partition(b"?")[0].decode("latin-1")
            beside = self._beside(path, self.headers) if self._beside else ()
            self.transport.write(_answer(path, status, message, beside))
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.keeper.heads[self] = self._now()
        else:
            self.transport.close()

    @property
    def _answering(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is not None and not cycle.response_complete

    @property
    def _can_answer(self) -> bool:
        """Nothing of another answer is on its way, nor about to be."""
        return not self.pipeline and not (self._answering and self.cycle.response_started)

    def _weigh(self) -> None:
        """What has no end yet is measured too: a long line, chunks with long extensions."""
        limits = self.keeper.limits
        if self._begun and self._wire > limits.head_bytes:
            raise Refused(Fault.LARGE_HEAD)
        if self._within and self._wire > 2 * limits.body_bytes:
            raise Refused(Fault.LARGE_BODY)

    def _release(self) -> None:
        self.keeper.held_bytes -= self._held
        self._held = 0

    def _now(self) -> float:
        return self.loop.time()


def careful(
    keeper: Keeper, kind: type[CarefulProtocol] = CarefulProtocol, beside: Beside | None = None
) -> type[asyncio.Protocol]:
    """What uvicorn wants for `http`: it makes one for each connection."""
    return cast("type[asyncio.Protocol]", partial(kind, keeper, beside))


def _answer(path: str, status: int, message: str, beside: Sequence[Pair]) -> bytes:
    body = msgspec.json.encode(error_response(path, status, error_body(status, message), None))
    later = b"retry-after: 1\r\n" if status == 503 else b""
    length = str(len(body)).encode()
    return b"".join(
        (
            STATUS_LINE[status],
            b"content-type: application/json\r\nconnection: close\r\n",
            later,
            *(b"%b: %b\r\n" % pair for pair in beside),
            b"content-length: " + length + b"\r\n\r\n" + body,
        )
    )
