"""One HTTP request to a node, and its reply read event by event."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from api.generated import DONE
from api.generator import Event, Tap
from api.wire import WireError
from discovery.node import Node
from proxy.nodes.connection import NodeConnection
from proxy.nodes.connection_pool import NO_HEADERS, ConnectionPool
from proxy.nodes.failures import CALL_ERRORS, failure_of_error, failure_of_status
from proxy.nodes.patience import ReplyTimeouts
from proxy.nodes.reading import LegReader
from proxy.nodes.sse import SseSplitter

JSON = "application/json"
OK = 200
ENDING_S = 0.05  # how long a node may take to end its stream after its last token
LONGEST_REFUSAL = 64 << 10


async def read_leg(
    node: Node,
    reader: LegReader,
    ask: Callable[[], Awaitable[NodeConnection]],
    parting_s: float,
) -> AsyncGenerator[Event]:
    """Yield the events of the reply to `ask`. Closing it closes the connection: the abort."""
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
    """A request to a node; without a body it is a GET."""

    path: str
    body: bytes
    timeouts: ReplyTimeouts
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)

    async def send(self, lines: ConnectionPool, address: str) -> NodeConnection:
        """Send it and await the reply's head, whatever its status; the caller closes it."""
        return await lines.call(address, self.path, self.body, self.timeouts, self.headers)

    async def send_checked(self, lines: ConnectionPool, node: Node) -> NodeConnection:
        """The same for a node, if the status is 200; raises NodeFailed."""
        return await check_status(node, await self.send(lines, node.address))


async def check_status(node: Node, response: NodeConnection) -> NodeConnection:
    """Return the response if its status is 200; else raise NodeFailed with the error body."""
    if response.status == OK:
        return response
    with closing(response):
        raise failure_of_status(node, response.status, await response.read(LONGEST_REFUSAL))


async def read_whole(response: NodeConnection, most: int) -> bytes:
    """The whole body; raises WireError beyond `most` bytes."""
    data = await response.read(most + 1)
    if len(data) > most:
        raise WireError(f"an answer of more than {most} bytes")
    return data


@dataclass(slots=True)
class Reply:
    """The events of a reply with status 200, polled without waiting. Owns its connection.

    After the last event the connection reads the rest by itself, so that it can be reused.
    """

    connection: NodeConnection
    reader: LegReader
    ending_s: float
    event: Event | None = None  # the next; None at the end
    _pending: Iterator[Event] | None = None  # events that were read but not taken
    _splitter: SseSplitter = field(init=False)
    _body: bytearray = field(default_factory=bytearray)
    _over: bool = False

    def __post_init__(self) -> None:
        """What an event may be long depends on what was asked."""
        self._splitter = SseSplitter(self.reader.longest)

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
        """Whether plain tokens have come which the tap took; raises CALL_ERRORS.

        What the tap did not take is the next event that is ready.
        """
        poured = False
        while self._pending is None and (frames := self._frames()) is not None:
            tokens = self.reader.read_plain_tokens(frames)
            poured = tokens is not None and tap.take(tokens.tokens)
            if not poured:
                self._pending = self.reader.read(frames) if tokens is None else iter((tokens,))
        return poured

    def close(self) -> None:
        """Close the connection, unless the reply came to its end."""
        if not self._over:
            self._over = True
            self.connection.close()

    def _finish(self) -> None:
        if not self._over:
            self._over = True
            self.connection.close_after_end(self.ending_s)

    def _frames(self) -> Sequence[bytes] | None:
        """The frames of the bytes that have come, possibly none; None: no bytes have come.

        A reply that is not streamed is one frame, and the end. Raises WireError.
        """
        if (data := self.connection.read_available()) is None:
            return None
        if self.connection.content_type == JSON:
            return self._whole(data)
        if not data:
            raise WireError("the stream broke off")
        frames = self._splitter.feed(data)
        if frames or self._splitter.any_ended:
            self.connection.note_progress(self._splitter.num_held)
        return frames

    def _whole(self, data: bytes) -> Sequence[bytes]:
        self._body += data
        if len(self._body) > self.reader.longest:
            raise WireError(f"an answer of more than {self.reader.longest} bytes")
        return () if data else [bytes(self._body), DONE]
