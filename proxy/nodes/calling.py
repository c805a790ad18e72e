"""One call to a node of ours or of anybody's: asked, read event by event, and hung up."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from api.generated import DONE
from api.generator import Event, Tap
from api.wire import WireError
from discovery.registry import Node
from proxy.nodes.connection import NodeConnection, ReplyTimeouts
from proxy.nodes.connection_pool import NO_HEADERS, ConnectionPool
from proxy.nodes.failures import CALL_ERRORS, failure_of_error, failure_of_status
from proxy.nodes.reading import LegReader
from proxy.nodes.sse import SseSplitter

JSON = "application/json"
OK = 200
ENDING_S = 0.05  # what a node has to end its stream after its last token
LONGEST_REFUSAL = 64 << 10


async def read_leg(
    node: Node,
    reader: LegReader,
    ask: Callable[[], Awaitable[NodeConnection]],
    parting_s: float,
) -> AsyncGenerator[Event]:
    """What the reply to `ask` says. Closing it closes the connection, which is the abort."""
    try:
        with closing(Reply(await ask(), reader, parting_s)) as reply:
            while True:
                while not reply.ready():
                    await reply.connection.wait()
                if (event := reply.event) is None:
                    return
                yield event
    except CALL_ERRORS as error:
        raise failure_of_error(node, error) from error


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """What is asked of a node; without a body it is a GET."""

    path: str
    body: bytes
    timeouts: ReplyTimeouts
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)

    async def send(self, lines: ConnectionPool, address: str) -> NodeConnection:
        """The reply's head, whatever its status. The caller closes what it gets."""
        return await lines.call(address, self.path, self.body, self.timeouts, self.headers)

    async def send_checked(self, lines: ConnectionPool, node: Node) -> NodeConnection:
        """The reply's head, if all is well; raises NodeFailed."""
        return await check_status(node, await self.send(lines, node.registration.http_address))


async def check_status(node: Node, response: NodeConnection) -> NodeConnection:
    """The same if its status is; raises NodeFailed with what it says."""
    if response.status == OK:
        return response
    with closing(response):
        raise failure_of_status(node, response.status, await response.read(LONGEST_REFUSAL))


@dataclass(slots=True)
class Reply:
    """A reply that is well, event by event, and without waiting. Owns its line.

    Once nothing is to come that matters the line is left to its end, so that it can be used
    again: nobody waits for that.
    """

    connection: NodeConnection
    reader: LegReader
    ending_s: float
    event: Event | None = None  # the next, or at its end None
    _pending: Iterator[Event] | None = None  # of what was read and is not over
    _splitter: SseSplitter = field(default_factory=SseSplitter)
    _body: bytearray = field(default_factory=bytearray)
    _over: bool = False

    def ready(self) -> bool:
        """Whether the next event is there, or the end; raises CALL_ERRORS."""
        while True:
            if self._pending is not None:
                self.event = next(self._pending, None)
                if self.reader.over:
                    self._finish()
                    return True
                if self.event is not None:
                    return True
                self._pending = None
            if (frames := self._frames()) is None:
                return False
            self.event = self.reader.read_plain_tokens(frames)
            if self.event is not None:
                return True
            self._pending = self.reader.read(frames)

    def drain_to(self, tap: Tap) -> bool:
        """Whether what has come were plain tokens, which the tap took; raises CALL_ERRORS.

        What it did not take is the next that is ready.
        """
        poured = False
        while self._pending is None and (frames := self._frames()) is not None:
            tokens = self.reader.read_plain_tokens(frames)
            poured = tokens is not None and tap.take(tokens.tokens)
            if not poured:
                self._pending = self.reader.read(frames) if tokens is None else iter((tokens,))
        return poured

    def close(self) -> None:
        """Hang up, unless it came to its end."""
        if not self._over:
            self._over = True
            self.connection.close()

    def _finish(self) -> None:
        if not self._over:
            self._over = True
            self.connection.close_after_end(self.ending_s)

    def _frames(self) -> Sequence[bytes] | None:
        """A byte's worth of events at least, which may be none; None: they are to come. One
        that is not streamed is one event, and the end. Raises WireError.
        """
        if (data := self.connection.read_available()) is None:
            return None
        if self.connection.content_type == JSON:
            return self._whole(data)
        if not data:
            raise WireError("the stream broke off")
        return self._splitter.feed(data)

    def _whole(self, data: bytes) -> Sequence[bytes]:
        self._body += data
        return () if data else [bytes(self._body), DONE]
