"""Calls nodes over HTTP: the NodeClient of the pipeline."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field

import aiohttp
import msgspec

from api.generate import NodeCall, encode_call
from api.generated import DONE
from api.generator import BAD_REQUEST, Event, Leg, PooledEvent
from api.pooling.node_call import PATH, decode_pooled, encode_pooling
from api.wire import UNREADABLE, WireError
from discovery.registry import Node
from engine.request import PoolingRequest, Request
from proxy.errors import NodeFailed
from proxy.nodes.reading import LegReader, request_for
from proxy.nodes.sse import SseSplitter

GENERATE = "/inference/v1/generate"
JSON = "application/json"
OK, SERVICE_UNAVAILABLE = 200, 503
AT_FAULT = {BAD_REQUEST, 413, 422}  # what other nodes would say as well

SILENCE_S = 10.0  # our nodes say something every 2 s
FOREIGN_SILENCE_S = 600.0
CONNECT_S = 3.0
KEEPALIVE_S = 4.0  # less than a server's 5 s, so that it is rarely the server who hangs up
PARTING_S = 0.05  # what a node has to end its stream after its last token
LONGEST_REFUSAL = 64 << 10

BROKEN = (aiohttp.ClientError, TimeoutError, OSError, WireError)


class _Detail(msgspec.Struct, frozen=True):
    message: str = ""
    param: str | None = None


class _Refusal(msgspec.Struct, frozen=True):
    """vLLM's error body; ours has the same shape."""

    error: _Detail = _Detail()
    message: str = ""


@dataclass(frozen=True, slots=True)
class HttpNodeClient:
    """One pool of connections for all nodes."""

    session: aiohttp.ClientSession
    silence_s: float = SILENCE_S
    foreign_silence_s: float = FOREIGN_SILENCE_S
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
            raise NodeFailed(node.node_id, _reason(error), retryable=True) from error

    async def pool(
        self, node: Node, requests: Sequence[PoolingRequest]
    ) -> Sequence[PooledEvent]:
        """See PoolingClient."""
        if not node.ours and any(one.token_types for one in requests):
            reason = "a node of vLLM cannot be told a pair's segments"
            raise NodeFailed(node.node_id, reason, retryable=True, answered=True)
        body = encode_pooling(requests, node.registration.model)
        try:
            with closing(await self._called(node, PATH, body)) as response:
                return decode_pooled(await response.read(), requests)
        except BROKEN as error:
            raise NodeFailed(node.node_id, _reason(error), retryable=True) from error

    async def _post(self, node: Node, request: Request, leg: Leg) -> aiohttp.ClientResponse:
        asked = request_for(request, leg, ours=node.ours)
        body = encode_call(NodeCall(asked, leg, compact=node.ours))
        return await self._called(node, GENERATE, body)

    async def _called(self, node: Node, path: str, body: bytes) -> aiohttp.ClientResponse:
        """A pooled connection that the node has hung up meanwhile is not the node's failure."""
        try:
            response = await self._send(node, path, body)
        except (aiohttp.ServerDisconnectedError, ConnectionError) as error:
            if isinstance(error, aiohttp.ClientConnectorError):
                raise
            response = await self._send(node, path, body)
        if response.status != OK:
            with closing(response):
                raise await _refusal(node, response)
        return response

    async def _send(self, node: Node, path: str, body: bytes) -> aiohttp.ClientResponse:
        """The id is in the body only: a node may read a leg out of a header with addresses."""
        streams = node.ours and path == GENERATE
        patience_s = self.silence_s if streams else self.foreign_silence_s
        return await self.session.post(
            f"http://{node.registration.http_address}{path}",
            data=body,
            headers={"Content-Type": JSON},
            timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_S, sock_read=patience_s),
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


async def _refusal(node: Node, response: aiohttp.ClientResponse) -> NodeFailed:
    """Some statuses are about the request, and so for its sender; 503 says: not now."""
    status, data = response.status, await response.content.read(LONGEST_REFUSAL)
    try:
        body = msgspec.json.decode(data, type=_Refusal)
    except UNREADABLE:
        body = _Refusal()
    said = body.error.message or body.message
    return NodeFailed(
        node.node_id,
        said or f"it answered with status {status}",
        retryable=status not in AT_FAULT,
        answered=status == SERVICE_UNAVAILABLE,
        param=body.error.param,
    )


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        refused = isinstance(error.os_error, ConnectionRefusedError)
        return "connection refused" if refused else f"no connection: {error.os_error}"
    if isinstance(error, TimeoutError):
        return "silent for too long"
    return str(error) or "connection lost"
