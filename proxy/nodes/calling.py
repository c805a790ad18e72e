"""One call to a node of ours or of anybody's: asked, read event by event, and hung up."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from api.generated import DONE
from api.generator import Event, Tap
from api.wire import WireError
from discovery.registry import Node
from proxy.nodes.failing import BROKEN, broken, refused
from proxy.nodes.line import Line, Patience
from proxy.nodes.lines import NOTHING, Lines
from proxy.nodes.reading import LegReader
from proxy.nodes.sse import SseSplitter

JSON = "application/json"
OK = 200
PARTING_S = 0.05  # what a node has to end its stream after its last token
LONGEST_REFUSAL = 64 << 10


async def one_leg(
    node: Node, reader: LegReader, ask: Callable[[], Awaitable[Line]], parting_s: float
) -> AsyncGenerator[Event]:
    """What the reply to `ask` says. Closing it closes the connection, which is the abort."""
    try:
        with closing(Reply(await ask(), reader, parting_s)) as reply:
            while True:
                while not reply.ready():
                    await reply.line.news()
                if (event := reply.event) is None:
                    return
                yield event
    except BROKEN as error:
        raise broken(node, error) from error


@dataclass(frozen=True, slots=True)
class Call:
    """What is asked of a node; without a body it is a GET."""

    path: str
    body: bytes
    patience: Patience
    headers: Mapping[str, str] = field(default_factory=lambda: NOTHING)

    async def made(self, lines: Lines, address: str) -> Line:
        """The reply's head, whatever its status. The caller closes what it gets."""
        return await lines.call(address, self.path, self.body, self.patience, self.headers)

    async def answered(self, lines: Lines, node: Node) -> Line:
        """The reply's head, if all is well; raises NodeFailed."""
        return await well(node, await self.made(lines, node.registration.http_address))


async def well(node: Node, response: Line) -> Line:
    """The same if its status is; raises NodeFailed with what it says."""
    if response.status == OK:
        return response
    with closing(response):
        raise refused(node, response.status, await response.read(LONGEST_REFUSAL))


@dataclass(slots=True)
class Reply:
    """A reply that is well, event by event, and without waiting. Owns its line.

    Once nothing is to come that matters the line is left to its end, so that it can be used
    again: nobody waits for that.
    """

    line: Line
    reader: LegReader
    parting_s: float
    event: Event | None = None  # the next, or at its end None
    _said: Iterator[Event] | None = None  # of what was read and is not over
    _splitter: SseSplitter = field(default_factory=SseSplitter)
    _body: bytearray = field(default_factory=bytearray)
    _over: bool = False

    def ready(self) -> bool:
        """Whether the next event is there, or the end; raises BROKEN."""
        while True:
            if self._said is not None:
                self.event = next(self._said, None)
                if self.reader.over:
                    self._part()
                    return True
                if self.event is not None:
                    return True
                self._said = None
            if (frames := self._frames()) is None:
                return False
            self.event = self.reader.plain(frames)
            if self.event is not None:
                return True
            self._said = self.reader.read(frames)

    def pour(self, tap: Tap) -> bool:
        """Whether what has come since were plain tokens, and the tap took them; raises BROKEN.
        What it did not take is the next that is ready.
        """
        poured = False
        while self._said is None and (frames := self._frames()) is not None:
            tokens = self.reader.plain(frames)
            poured = tokens is not None and tap.take(tokens.tokens)
            if not poured:
                self._said = self.reader.read(frames) if tokens is None else iter((tokens,))
        return poured

    def close(self) -> None:
        """Hang up, unless it came to its end."""
        if not self._over:
            self._over = True
            self.line.close()

    def _part(self) -> None:
        if not self._over:
            self._over = True
            self.line.part(self.parting_s)

    def _frames(self) -> Sequence[bytes] | None:
        """A byte's worth of events at least, which may be none; None: they are to come. One
        that is not streamed is one event, and the end. Raises WireError.
        """
        if (data := self.line.now()) is None:
            return None
        if self.line.content_type == JSON:
            return self._whole(data)
        if not data:
            raise WireError("the stream broke off")
        return self._splitter.feed(data)

    def _whole(self, data: bytes) -> Sequence[bytes]:
        self._body += data
        return () if data else [bytes(self._body), DONE]
