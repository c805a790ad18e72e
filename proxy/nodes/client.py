"""Calls nodes over HTTP: the NodeClient of the pipeline."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field

import aiohttp

from api.generate import NodeCall, encode_call
from api.generated import DONE
from api.generator import Event, Leg, PooledEvent
from api.pooling.node_call import PATH, decode_pooled, encode_pooling
from api.wire import WireError
from discovery.registry import Node
from engine.request import PoolingRequest, Request
from proxy.errors import Cause, NodeFailed
from proxy.nodes.failing import BROKEN, broken, refused
from proxy.nodes.reading import LegReader, request_for
from proxy.nodes.sse import SseSplitter

GENERATE = "/inference/v1/generate"
JSON = "application/json"
OK = 200

FIRST_SIGN_S = 10.0  # our nodes begin to answer within 4 s, whatever else they do
SILENCE_S = 10.0  # and say something every 2 s from then on
FOREIGN_SILENCE_S = 600.0
CONNECT_S = 3.0
KEEPALIVE_S = 4.0  # less than a server's 5 s, so that it is rarely the server who hangs up
PARTING_S = 0.05  # what a node has to end its stream after its last token
LONGEST_REFUSAL = 64 << 10
NO_MORE: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class HttpNodeClient:
    """One pool of connections for all nodes."""

    session: aiohttp.ClientSession
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

    async def _post(self, node: Node, request: Request, leg: Leg) -> aiohttp.ClientResponse:
        asked = request_for(request, leg, ours=node.ours)
        body = encode_call(NodeCall(asked, leg, compact=node.ours))
        traced = leg.trace.headers if leg.trace else {}
        return await self._called(node, GENERATE, body, traced)

    async def _called(
        self, node: Node, path: str, body: bytes, more: Mapping[str, str] = NO_MORE
    ) -> aiohttp.ClientResponse:
        """A pooled connection that the node has hung up meanwhile is not the node's failure."""
        try:
            response = await self._send(node, path, body, more)
        except (aiohttp.ServerDisconnectedError, ConnectionError) as error:
            if isinstance(error, aiohttp.ClientConnectorError):
                raise
            response = await self._send(node, path, body, more)
        if response.status != OK:
            with closing(response):
                data = await response.content.read(LONGEST_REFUSAL)
                raise refused(node, response.status, data)
        return response

    async def _send(
        self, node: Node, path: str, body: bytes, more: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        """The id is in the body only: a node may read a leg out of a header with addresses."""
        streams = node.ours and path == GENERATE
        silence_s = self.silence_s if streams else self.foreign_silence_s
        async with asyncio.timeout(self.first_sign_s if streams else None):
            return await self.session.post(
                f"http://{node.registration.http_address}{path}",
                data=body,
                headers={"Content-Type": JSON, **more},
                timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_S, sock_read=silence_s),
                allow_redirects=False,
            )


@dataclass(slots=True)
class _Frames:
    """What a response holds; one that is not streamed is one event, and the end."""

    response: aiohttp.ClientResponse
    splitter: SseSplitter = field(default_factory=SseSplitter)

    async def more(self) -> Sequence[bytes]:
        """At least one byte's worth of events, which may be none; raises WireError."""
        if self.response.content_type == JSON:
            return [await self.response.read(), DONE]
        data = await self.response.content.readany()
        if not data:
            raise WireError("the stream broke off")
        return self.splitter.feed(data)


@asynccontextmanager
async def open_session() -> AsyncIterator[aiohttp.ClientSession]:
    """A session without limits; what it waits for is said with each call."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
    async with aiohttp.ClientSession(
        connector=connector,
        headers={"Accept-Encoding": "identity"},
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(),
        auto_decompress=False,
    ) as session:
        yield session


async def _part(response: aiohttp.ClientResponse, patience_s: float) -> None:
    """Let the node end its stream, so that the connection can be used again."""
    if response.content.at_eof():
        return
    with suppress(*BROKEN):
        async with asyncio.timeout(patience_s):
            while not response.content.at_eof():
                await response.content.readany()
