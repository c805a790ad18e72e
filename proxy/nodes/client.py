"""Calls nodes over HTTP: the NodeClient of the pipeline."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field

from api.generate import NodeCall, encode_call
from api.generated import DONE
from api.generator import Event, Leg, PooledEvent
from api.pooling.node_call import PATH, decode_pooled, encode_pooling
from api.wire import WireError
from discovery.registry import Node
from engine.request import PoolingRequest, Request
from proxy.errors import Cause, NodeFailed
from proxy.nodes.failing import BROKEN, broken, refused
from proxy.nodes.line import Line, Patience
from proxy.nodes.lines import Lines
from proxy.nodes.reading import LegReader, request_for
from proxy.nodes.sse import SseSplitter

GENERATE = "/inference/v1/generate"
JSON = "application/json"
OK = 200

FIRST_SIGN_S = 10.0  # our nodes begin to answer within 4 s, whatever else they do
SILENCE_S = 10.0  # and say something every 2 s from then on
FOREIGN_SILENCE_S = 600.0
PARTING_S = 0.05  # what a node has to end its stream after its last token
LONGEST_REFUSAL = 64 << 10
NO_MORE: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class HttpNodeClient:
    """One pool of connections for all nodes."""

    lines: Lines
    silence_s: float = SILENCE_S
    foreign_silence_s: float = FOREIGN_SILENCE_S
    first_sign_s: float = FIRST_SIGN_S
    parting_s: float = PARTING_S

    async def generate(self, node: Node, request: Request, leg: Leg) -> AsyncGenerator[Event]:
        """Closing it closes the connection, which is the abort; see NodeClient."""
        wanted = request.sampling.max_tokens - len(request.generated)
        reader = LegReader(leg.hold, node.ours, wanted)
        try:
            # a response that was read to its end has given its connection back already
            with closing(await self._post(node, request, leg)) as response:
                frames = _Frames(response)
                while not reader.over:
                    for event in reader.read(await frames.more()):
                        if reader.over:
                            await _part(response, self.parting_s)
                        yield event
        except BROKEN as error:
            raise broken(node, error) from error

    async def pool(
        self, node: Node, requests: Sequence[PoolingRequest]
    ) -> Sequence[PooledEvent]:
        """See PoolingClient."""
        if not node.ours and any(one.token_types for one in requests):
            reason = "a node of vLLM cannot be told a pair's segments"
            raise NodeFailed(node.node_id, reason, Cause.REFUSED)
        body = encode_pooling(requests, node.registration.model)
        try:
            with closing(await self._called(node, PATH, body)) as response:
                return decode_pooled(await response.read(), requests)
        except BROKEN as error:
            raise broken(node, error) from error

    async def _post(self, node: Node, request: Request, leg: Leg) -> Line:
        asked = request_for(request, leg, ours=node.ours)
        body = encode_call(NodeCall(asked, leg, compact=node.ours))
        traced = leg.trace.headers if leg.trace else NO_MORE
        return await self._called(node, GENERATE, body, traced)

    async def _called(
        self, node: Node, path: str, body: bytes, more: Mapping[str, str] = NO_MORE
    ) -> Line:
        """The id is in the body only: a node may read a leg out of a header with addresses."""
        patience = Patience(self.foreign_silence_s, self.foreign_silence_s)
        if node.ours and path == GENERATE:
            patience = Patience(self.first_sign_s, self.silence_s)
        address = node.registration.http_address
        response = await self.lines.call(address, path, body, patience, more)
        if response.status != OK:
            with closing(response):
                data = await response.read(LONGEST_REFUSAL)
                raise refused(node, response.status, data)
        return response


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
