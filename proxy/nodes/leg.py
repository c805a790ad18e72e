"""One leg at a pdserve node: a PollableLeg over HTTP, read without a task of its own.

During a hand-over a request has two of these. Each calls back when it has an event.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from api.generator import Event, Tap
from discovery.node import Node
from proxy.errors import NodeFailed, ProxyExhausted
from proxy.nodes.calling import LONGEST_REFUSAL, OK, NodeRequest, Reply
from proxy.nodes.connection import NodeConnection
from proxy.nodes.connection_errors import ConnectionClosed, HostGone
from proxy.nodes.connection_pool import ConnectionPool, encode_request
from proxy.nodes.failures import CALL_ERRORS, failure_of_error, failure_of_status
from proxy.nodes.reading import LegReader


@dataclass(slots=True)
class HttpLeg:
    """Polled by `ready` and `take`, or read as an async iterator."""

    connections: ConnectionPool
    node: Node
    call: NodeRequest
    reader: LegReader
    ending_s: float
    _on_ready: Callable[[], None] | None = None
    _readable: asyncio.Event | None = None  # for reading as an iterator
    _connection: NodeConnection | None = None
    _fresh: bool = False  # the connection was not used before
    _reply: Reply | None = None
    _refusal: bytearray = field(default_factory=bytearray)
    _connecting: "asyncio.Task[NodeConnection] | None" = None
    _failure: NodeFailed | ProxyExhausted | None = None
    _begun: bool = False
    _ready: bool = False  # an event, the end or a failure is there and was not taken
    _over: bool = False

    def listen(self, on_ready: Callable[[], None]) -> None:
        """`on_ready` is called when `ready` may have become true. Call this before `ready`."""
        self._on_ready = on_ready

    def ready(self) -> bool:
        """Whether there is something to take; the first call sends the request."""
        if not (self._ready or self._over) and self._guarded(
            self._reply.ready if self._reply else self._begin
        ):
            self._ready = True
        return self._ready or self._over

    def drain_to(self, tap: Tap) -> bool:
        """See PollableLeg."""
        reply = self._reply
        if reply is None or self._ready or self._over:
            return False
        return self._guarded(lambda: reply.drain_to(tap))

    def take(self) -> Event | None:
        """The event that is ready, or None at the end. Raises NodeFailed, or ProxyExhausted."""
        self._ready = False
        if (failure := self._failure) is not None:
            self._failure = None
            raise failure
        event = None if self._reply is None or self._over else self._reply.event
        if event is None:
            self._over, self._on_ready = True, None
        return event

    def hang_up(self) -> None:
        """Close the leg; before its end, that aborts it at the node. Nobody is called back any
        more: who listens may hold the leg, and its request would be kept until garbage is
        collected.
        """
        self._over, self._on_ready = True, None
        line, self._connection = self._connection, None
        if self._connecting is not None:
            self._connecting.cancel()
        elif self._reply is not None:
            self._reply.close()
        elif line is not None:
            line.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        if self._readable is None:
            self._readable = asyncio.Event()
            self.listen(self._readable.set)
        while not self.ready():
            self._readable.clear()
            await self._readable.wait()
        if (event := self.take()) is None:
            raise StopAsyncIteration
        return event

    async def aclose(self) -> None:
        """See `hang_up`."""
        self.hang_up()

    def _guarded(self, look: Callable[[], bool]) -> bool:
        """Call `look`; if it fails, `take` raises the failure."""
        try:
            return look()
        except CALL_ERRORS as error:
            self._fail(failure_of_error(self.node, error), error)
        except NodeFailed as failure:
            self._fail(failure)
        return False

    def _fail(
        self, failure: NodeFailed | ProxyExhausted, cause: Exception | None = None
    ) -> None:
        self.hang_up()
        failure.__cause__ = cause
        self._failure, self._ready = failure, True

    def _begin(self) -> bool:
        """Do what is due until the reply's head is there; returns whether an event is ready."""
        if not self._begun:
            self._begun = True
            self._ask()
        if self._connection is None or not self._answered(self._connection):
            if self._connecting is not None and self._connecting.done():
                self._connecting.result()  # raises NoConnection
            return False
        if self._connection.status != OK:
            return self._refused(self._connection)
        self._reply = Reply(self._connection, self.reader, self.ending_s)
        return self._reply.ready()

    def _ask(self) -> None:
        """Send the request on an idle connection, or on a new one."""
        address = self.node.address
        self._connection = self.connections.take_idle(address)
        if self._connection is not None:
            self._send(self._connection)
        else:
            self._connecting = asyncio.create_task(
                self.connections.connect(address, self.call.timeouts)
            )
            self._connecting.add_done_callback(self._connected)

    def _connected(self, connecting: "asyncio.Task[NodeConnection]") -> None:
        """Send the request, unless the leg was closed; `ready` raises connection errors."""
        if not connecting.cancelled() and connecting.exception() is None:
            self._connecting, line = None, connecting.result()
            if self._over:
                line.hang_up()
                return
            self._connection, self._fresh = line, True
            self._send(line)
        if self._on_ready is not None:
            self._on_ready()

    def _send(self, line: NodeConnection) -> None:
        address, call = self.node.address, self.call
        request = encode_request(address, call.path, call.body, call.headers)
        line.send(request, call.timeouts, self._on_ready)

    def _answered(self, line: NodeConnection) -> bool:
        """Whether the head is there. If an idle connection turns out closed, try another."""
        try:
            return line.head_arrived()
        except ConnectionClosed as lost:
            if self._fresh or line.any_received or isinstance(lost, HostGone):
                raise
            line.close()
            self._ask()
            return False

    def _refused(self, line: NodeConnection) -> bool:
        """Raises NodeFailed once the error body is there."""
        while (data := line.read_available()) is not None:
            self._refusal += data
            if not data or len(self._refusal) >= LONGEST_REFUSAL:
                raise failure_of_status(self.node, line.status, bytes(self._refusal))
        return False
