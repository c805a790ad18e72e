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
from proxy.nodes.calling import LONGEST_REFUSAL, OK, Call, Reply
from proxy.nodes.endings import Gone, HungUp
from proxy.nodes.failing import BROKEN, broken, refused
from proxy.nodes.line import Line
from proxy.nodes.lines import Lines, request_of
from proxy.nodes.reading import LegReader


@dataclass(slots=True)
class HttpLeg:
    """Told by `listen`, taken by `take`; or read as an iterator, by who has only one."""

    lines: Lines
    node: Node
    call: Call
    reader: LegReader
    parting_s: float
    _told: Callable[[], None] | None = None
    _news: asyncio.Event | None = None  # for who reads it as an iterator
    _line: Line | None = None
    _fresh: bool = False  # the line was not used before
    _reply: Reply | None = None
    _refusal: bytearray = field(default_factory=bytearray)
    _connecting: "asyncio.Task[Line] | None" = None
    _failure: NodeFailed | ProxyExhausted | None = None
    _begun: bool = False
    _there: bool = False  # ready, and not taken
    _over: bool = False

    def listen(self, told: Callable[[], None]) -> None:
        """Who reads is told that there may be something to take. To be said before `ready`."""
        self._told = told

    def ready(self) -> bool:
        """Whether there is something to take; asks the node when it is called first."""
        if not (self._there or self._over) and self._looked(
            self._reply.ready if self._reply else self._begin
        ):
            self._there = True
        return self._there or self._over

    def pour(self, tap: Tap) -> bool:
        """See Telling."""
        reply = self._reply
        if reply is None or self._there or self._over:
            return False
        return self._looked(lambda: reply.pour(tap))

    def take(self) -> Event | None:
        """What is ready: an event, or None at the end. Raises NodeFailed, or ProxyExhausted."""
        self._there = False
        if (failure := self._failure) is not None:
            self._failure = None
            raise failure
        event = None if self._reply is None or self._over else self._reply.event
        self._over = event is None
        return event

    def hang_up(self) -> None:
        """Nobody wants to hear more of it: unless it came to its end, that is the abort."""
        self._over, line, self._line = True, self._line, None
        if self._connecting is not None:
            self._connecting.cancel()
        elif self._reply is not None:
            self._reply.close()
        elif line is not None:
            line.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        if self._news is None:
            self._news = asyncio.Event()
            self.listen(self._news.set)
        while not self.ready():
            self._news.clear()
            await self._news.wait()
        if (event := self.take()) is None:
            raise StopAsyncIteration
        return event

    async def aclose(self) -> None:
        """See `hang_up`."""
        self.hang_up()

    def _looked(self, look: Callable[[], bool]) -> bool:
        """What it says; where it fails, that is what is there to be taken."""
        try:
            return look()
        except BROKEN as error:
            self._fail(broken(self.node, error), error)
        except NodeFailed as failure:
            self._fail(failure)
        return False

    def _fail(
        self, failure: NodeFailed | ProxyExhausted, cause: Exception | None = None
    ) -> None:
        self.hang_up()
        failure.__cause__ = cause
        self._failure, self._there = failure, True

    def _begin(self) -> bool:
        """Whatever is to be done until the reply has begun."""
        if not self._begun:
            self._begun = True
            self._ask()
        if self._line is None or not self._answered(self._line):
            if self._connecting is not None and self._connecting.done():
                self._connecting.result()  # raises NoConnection
            return False
        if self._line.status != OK:
            return self._refused(self._line)
        self._reply = Reply(self._line, self.reader, self.parting_s)
        return self._reply.ready()

    def _ask(self) -> None:
        """By a connection that is kept, or else by a new one."""
        address = self.node.registration.http_address
        self._line = self.lines.take(address)
        if self._line is not None:
            self._send(self._line)
        else:
            self._connecting = asyncio.create_task(
                self.lines.connect(address, self.call.patience)
            )
            self._connecting.add_done_callback(self._connected)

    def _connected(self, connecting: "asyncio.Task[Line]") -> None:
        """Nobody wants it any more, it is there, or `ready` will raise why it is not."""
        if not connecting.cancelled() and connecting.exception() is None:
            self._connecting, line = None, connecting.result()
            if self._over:
                line.hang_up()
                return
            self._line, self._fresh = line, True
            self._send(line)
        if self._told is not None:
            self._told()

    def _send(self, line: Line) -> None:
        address, call = self.node.registration.http_address, self.call
        request = request_of(address, call.path, call.body, call.headers)
        line.send(request, call.patience, self._told)

    def _answered(self, line: Line) -> bool:
        """A connection that was hung up while it was idle is not the node's failure."""
        try:
            return line.begun()
        except HungUp as lost:
            if self._fresh or line.heard_of or isinstance(lost, Gone):
                raise
            line.close()
            self._ask()
            return False

    def _refused(self, line: Line) -> bool:
        """Raises NodeFailed once it has said why."""
        while (data := line.now()) is not None:
            self._refusal += data
            if not data or len(self._refusal) >= LONGEST_REFUSAL:
                raise refused(self.node, line.status, bytes(self._refusal))
        return False
