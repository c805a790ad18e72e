"""One leg at a node of ours: asked at once, and read without a task of its own.

A request has two of these for as long as its hand-over lasts. Whoever reads both is told when
there is something to read, and takes it: no task waits for either.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from api.generator import Event, Tap
from discovery.registry import Node
from proxy.errors import NodeFailed, ProxyExhausted
from proxy.nodes.calling import LONGEST_REFUSAL, OK, NodeRequest, Reply
from proxy.nodes.connection import NodeConnection
from proxy.nodes.connection_errors import ConnectionClosed, HostGone
from proxy.nodes.connection_pool import ConnectionPool, encode_request
from proxy.nodes.failures import CALL_ERRORS, failure_of_error, failure_of_status
from proxy.nodes.reading import LegReader


@dataclass(slots=True)
class HttpLeg:
    """Told by `listen`, taken by `take`; or read as an iterator, by who has only one."""

    connections: ConnectionPool
    node: Node
    call: NodeRequest
    reader: LegReader
    ending_s: float
    _on_ready: Callable[[], None] | None = None
    _readable: asyncio.Event | None = None  # for who reads it as an iterator
    _connection: NodeConnection | None = None
    _fresh: bool = False  # the line was not used before
    _reply: Reply | None = None
    _refusal: bytearray = field(default_factory=bytearray)
    _connecting: "asyncio.Task[NodeConnection] | None" = None
    _failure: NodeFailed | ProxyExhausted | None = None
    _begun: bool = False
    _ready: bool = False  # ready, and not taken
    _over: bool = False

    def listen(self, told: Callable[[], None]) -> None:
        """Who reads is told that there may be something to take. To be said before `ready`."""
        self._on_ready = told

    def ready(self) -> bool:
        """Whether there is something to take; asks the node when it is called first."""
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
        """What is ready: an event, or None at the end. Raises NodeFailed, or ProxyExhausted."""
        self._ready = False
        if (failure := self._failure) is not None:
            self._failure = None
            raise failure
        event = None if self._reply is None or self._over else self._reply.event
        self._over = event is None
        return event

    def hang_up(self) -> None:
        """Nobody wants to hear more of it: unless it came to its end, that is the abort."""
        self._over, line, self._connection = True, self._connection, None
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
        """What it says; where it fails, that is what is there to be taken."""
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
        """Whatever is to be done until the reply has begun."""
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
        """By a connection that is kept, or else by a new one."""
        address = self.node.registration.http_address
        self._connection = self.connections.take_idle(address)
        if self._connection is not None:
            self._send(self._connection)
        else:
            self._connecting = asyncio.create_task(
                self.connections.connect(address, self.call.timeouts)
            )
            self._connecting.add_done_callback(self._connected)

    def _connected(self, connecting: "asyncio.Task[NodeConnection]") -> None:
        """Nobody wants it any more, it is there, or `ready` will raise why it is not."""
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
        address, call = self.node.registration.http_address, self.call
        request = encode_request(address, call.path, call.body, call.headers)
        line.send(request, call.timeouts, self._on_ready)

    def _answered(self, line: NodeConnection) -> bool:
        """A connection that was hung up while it was idle is not the node's failure."""
        try:
            return line.head_arrived()
        except ConnectionClosed as lost:
            if self._fresh or line.any_received or isinstance(lost, HostGone):
                raise
            line.close()
            self._ask()
            return False

    def _refused(self, line: NodeConnection) -> bool:
        """Raises NodeFailed once it has said why."""
        while (data := line.read_available()) is not None:
            self._refusal += data
            if not data or len(self._refusal) >= LONGEST_REFUSAL:
                raise failure_of_status(self.node, line.status, bytes(self._refusal))
        return False
