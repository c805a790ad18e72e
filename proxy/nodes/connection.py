"""One connection to a node: HTTP/1.1 over a plain socket, parsed by httptools.

A token passes through here on every connection, so there is only a list between the socket and
the reader: no stream reader, no timer for a read, no task. `connection_errors.py` lists how a
call may end.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import cast

import httptools

from proxy.nodes.connection_errors import (
    ConnectionClosed,
    HostGone,
    MalformedReply,
    SilenceTimeout,
)
from proxy.nodes.patience import ProgressWatch, ReplyTimeouts

MOST_UNREAD = 64 << 10  # beyond this the socket is not read
MOST_AT_ONCE = 64 << 10
LONGEST_HEAD = 64 << 10


class NodeConnection(asyncio.Protocol):
    """Owned by its caller until `close`; `give_back` gets it if it can be reused."""

    def __init__(self, address: str, give_back: "Callable[[NodeConnection], None]") -> None:
        self.address = address
        self.status = 0
        self.content_type = ""
        self.complete = True  # so far nothing was asked
        self.lost = False
        self.free_since = 0.0
        self._transport: asyncio.Transport
        self._parser = httptools.HttpResponseParser(self)  # of one reply after another
        self._watch: ProgressWatch
        self._give_back = give_back
        self._loop = asyncio.get_running_loop()
        self._parts: deque[bytes] = deque()
        self._unread = 0
        self._paused = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._on_data: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def any_received(self) -> bool:
        """Whether any byte of the reply has come."""
        return self._received > 0

    # for callers

    async def ask(self, request: bytes, patience: ReplyTimeouts) -> None:
        """Send one request and await the head; raises the errors of `connection_errors.py`."""
        self.send(request, patience)
        while not self.head_arrived():
            await self.wait()

    async def read_some(self) -> bytes:
        """Wait for bytes of the body, `MOST_AT_ONCE` at most; empty: the body is complete."""
        while (data := self.read_available()) is None:
            await self.wait()
        return data

    def send(
        self, request: bytes, patience: ReplyTimeouts, on_data: Callable[[], None] | None = None
    ) -> None:
        """Send one request; `on_data` is called whenever bytes of the reply's body came."""
        self._begin(patience)
        self._on_data = on_data
        if self.lost:  # meanwhile: nobody would wake us
            self._error = ConnectionClosed("the node hung up")
            return
        self._transport.write(request)
        self._start_timer(patience.head_s)

    def head_arrived(self) -> bool:
        """Whether the reply's head is there; raises the errors of `connection_errors.py`."""
        if not self.status:
            self._raise_error()
        return self.status > 0

    def read_available(self) -> bytes | None:
        """Like `read_some`, but None if that would wait."""
        if not self._parts:
            if self.complete:
                return b""
            self._raise_error()
            return None
        data = self._take_parts()
        if self._paused and self._unread <= MOST_UNREAD and not self.lost:
            self._paused = False
            self.note_progress()
            self._transport.resume_reading()
        return data

    def note_progress(self, more: int = 0) -> None:
        """What was read ends an event or a comment, and has so many bytes behind it."""
        self._watch.note_progress(self._loop.time(), more)

    async def wait(self) -> None:
        """Wait until anything has happened."""
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def read(self, most: int | None = None) -> bytes:
        """The whole body, or what has come once that is at least `most` bytes."""
        data = bytearray()
        while (most is None or len(data) < most) and (part := await self.read_some()):
            data += part
        return bytes(data)

    def close(self) -> None:
        """Keep it for the next call if the reply is complete; otherwise hang up, which aborts.

        A connection whose reading is paused has too many unread bytes, and is hung up too.
        """
        self._on_data = None
        if self._timer is not None:
            self._timer.cancel()
        if self.complete and self._keep_alive and not self.lost and not self._paused:
            self._give_back(self)
        else:
            self.hang_up()

    def close_after_end(self, patience_s: float) -> None:
        """Like `close`, but wait up to `patience_s` for the reply's end, dropping the rest."""
        if self.complete or self.lost:
            self.close()
            return
        self._on_data = self._drop_rest
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(patience_s, self.close)

    def hang_up(self) -> None:
        """Close the socket; what the node has not taken of a request is not kept for it."""
        self.lost = True
        self._transport.abort()

    # called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self.complete:  # bytes without a request
            self.hang_up()
            return
        now, had_head = self._loop.time(), self.status > 0
        self._watch.note_data(len(data), now)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(MalformedReply(str(error)))
            return
        self._received += len(data)
        if self.status and not had_head:
            self._begin_body(now)
        if self._timer is None:
            self._start_timer(self._watch.left_s(now, unread=False))
        if not self.status and self._received > LONGEST_HEAD:
            self._fail(MalformedReply("a head without an end"))
        elif self._unread > MOST_UNREAD and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """See asyncio.Protocol. A body without a length ends this way."""
        self.lost = True
        if self.status and not self._framed and error is None:
            self.complete = True
        if not self.complete and self._error is None:
            kind = HostGone if isinstance(error, TimeoutError) else ConnectionClosed
            self._error = kind(str(error) if error else "the node hung up")
        self._wake()

    # called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        """See httptools."""
        name = name.lower()
        if name == b"content-type":
            self._type = value.partition(b";")[0].strip().lower().decode("latin-1")
        elif name in {b"content-length", b"transfer-encoding"}:
            self._framed = True

    def on_headers_complete(self) -> None:
        """See httptools."""
        self.content_type = self._type
        self._keep_alive = self._parser.should_keep_alive()
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """See httptools."""
        self._parts.append(body)
        self._unread += len(body)

    def on_message_complete(self) -> None:
        """See httptools."""
        self.complete = True

    # internals

    def _begin(self, patience: ReplyTimeouts) -> None:
        self.status, self.content_type, self.complete = 0, "", False
        self._parts, self._unread, self._paused, self._error = deque(), 0, False, None
        self._type, self._framed, self._keep_alive, self._received = "", False, False, 0
        self._watch = ProgressWatch(patience, self._loop.time())

    def _take_parts(self) -> bytes:
        """Nearly always all that has come, in one part."""
        parts = self._parts
        if self._unread <= MOST_AT_ONCE:
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            self._unread = 0
            return data
        taken, left = list[bytes](), MOST_AT_ONCE
        while left:
            part = parts.popleft()
            if len(part) > left:
                parts.appendleft(part[left:])
                part = part[:left]
            taken.append(part)
            left -= len(part)
        self._unread -= MOST_AT_ONCE
        return b"".join(taken)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _drop_rest(self) -> None:
        """Drop bytes of a reply that is no longer read."""
        self._parts.clear()
        self._unread = 0
        if self.complete or self.lost:
            self.close()

    def _wake(self) -> None:
        """Call back, or wake the waiter; the callback does not need a head alone."""
        if self._on_data is not None:
            if self._parts or self.complete or self.lost:
                self._on_data()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self.hang_up()
        self._wake()

    def _begin_body(self, now: float) -> None:
        """Behind the head another limit holds, which may be over before the head's."""
        self._watch.note_head(now, self._unread)
        patience = self._watch.timeouts
        if self._timer is not None and patience.silence_s < patience.head_s:
            self._timer.cancel()
            self._timer = None

    def _start_timer(self, seconds: float) -> None:
        unlimited = seconds == math.inf
        self._timer = None if unlimited else self._loop.call_later(seconds, self._check_silence)

    def _check_silence(self) -> None:
        """The timer of a call: fail it after too long a silence, or set the timer again."""
        if self._paused:
            self.note_progress()  # no byte can come
        left = self._watch.left_s(self._loop.time(), unread=bool(self._parts))
        if left > 0:
            self._start_timer(left)
        elif not self.complete:
            self._fail(SilenceTimeout("silent for too long"))
