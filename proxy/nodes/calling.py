"""One call to a node, whoever's it is: asked, read event by event, and hung up."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field

from api.generated import DONE
from api.generator import Event
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
        # a response that was read to its end has given its connection back already
        with closing(await ask()) as response:
            frames = _Frames(response)
            while not reader.over:
                for event in reader.read(await frames.more()):
                    if reader.over:
                        await _part(response, parting_s)
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
class _Frames:
    """What a response holds; one that is not streamed is one event, and the end."""

    response: Line
    splitter: SseSplitter = field(default_factory=SseSplitter)

    async def more(self) -> Sequence[bytes]:
        """At least one byte's worth of events, which may be none; raises WireError."""
        if self.response.content_type == JSON:
            return [await self.response.read(), DONE]
        data = await self.response.more()
        if not data:
            raise WireError("the stream broke off")
        return self.splitter.feed(data)


async def _part(response: Line, patience_s: float) -> None:
    """Let the node end its stream, so that the connection can be used again."""
    if response.whole:
        return
    with suppress(*BROKEN):
        async with asyncio.timeout(patience_s):
            while not response.whole:
                await response.more()
