"""Calls nodes of vLLM: over either of its endpoints, and in any of its ways to hand KV over.

Such a node may be silent for as long as it prefills: patience has no bound unless one is told.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, closing
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

from api.generator import Event, FailedEvent, Leg, TicketEvent
from discovery.registry import Node
from engine.request import Request
from proxy.errors import Cause, NodeFailed
from proxy.foreign.bodies import (
    COMPLETIONS,
    GENERATE,
    UnsupportedByVllm,
    completion_body,
    generate_body,
)
from proxy.foreign.completions import decode_completion
from proxy.foreign.vllm_nodes import LegHandOver, VllmNodes
from proxy.nodes.calling import OK, NodeRequest, check_status, read_leg
from proxy.nodes.connection import NodeConnection, ReplyTimeouts
from proxy.nodes.connection_pool import ConnectionPool
from proxy.nodes.failures import CALL_ERRORS, failure_of_error
from proxy.nodes.reading import LegReader

NO_SUCH_PAGE = {404, 405}
QUERY = "/query"
QUERY_PATIENCE = ReplyTimeouts(5.0, 5.0)
REQUEST_ID = "X-Request-Id"


@dataclass(frozen=True, slots=True)
class VllmClient:
    """What is found out of nodes is in `manners`."""

    connections: ConnectionPool
    vllm_nodes: VllmNodes
    timeouts: ReplyTimeouts
    ending_s: float
    key: Mapping[str, str]

    async def generate(self, node: Node, request: Request, leg: Leg) -> AsyncGenerator[Event]:
        """See NodeClient. A prefill leg that says its ticket first runs beside decode's."""
        outer_id = leg.outer_id or uuid4().hex
        manner = await self._manner(node, leg, outer_id)
        if manner.ticket is not None:
            yield TicketEvent(manner.ticket)
        wanted = request.sampling.max_tokens - len(request.generated)
        reader = LegReader(leg.hold, False, wanted)
        asked = _LegCall(node, request, leg, outer_id, manner)
        ask = partial(self._ask, asked, reader)
        try:
            async with aclosing(read_leg(node, reader, ask, self.ending_s)) as events:
                async for event in events:
                    if isinstance(event, FailedEvent):
                        self._doubt(node, leg)
                    elif isinstance(event, TicketEvent):
                        self._answered(asked, event)
                    yield event
        except NodeFailed:
            self._doubt(node, leg)
            raise

    async def _manner(self, node: Node, leg: Leg, outer_id: str) -> LegHandOver:
        now = asyncio.get_running_loop().time()
        bootstrap = self.vllm_nodes.bootstrap(node, now) if leg.hold else None
        if bootstrap is not None:
            call = NodeRequest(QUERY, b"", QUERY_PATIENCE)
            try:
                with closing(await call.send(self.connections, bootstrap)) as response:
                    said = await response.read() if response.status == OK else b""
                self.vllm_nodes.learn_engines(node, said, now)
            except CALL_ERRORS as error:
                raise failure_of_error(node, error) from error
        return self.vllm_nodes.hand_over(node, leg, outer_id)

    async def _ask(self, asked: "_LegCall", reader: LegReader) -> NodeConnection:
        """At its endpoint for token ids, if it has one: it is asked for that once."""
        node, manners = asked.node, self.vllm_nodes
        try:
            if manners.generates(node):
                response = await self._made(asked, GENERATE, asked.generate_body())
                if response.status not in NO_SUCH_PAGE:
                    return await check_status(node, response)
                response.close()
                manners.lacks_generate(node)
            body = asked.completion_body()
        except UnsupportedByVllm as error:
            cause = Cause.REFUSED
            raise NodeFailed(
                node.node_id, str(error), cause, retryable=False, param=error.param
            ) from error
        likeliest = asked.request.sampling.logprobs
        reader.decode = partial(decode_completion, likeliest=likeliest)
        response = await self._made(asked, COMPLETIONS, body)
        if response.status in NO_SUCH_PAGE:
            manners.retry_generate(node)
        return await check_status(node, response)

    async def _made(self, asked: "_LegCall", path: str, body: bytes) -> NodeConnection:
        trace = asked.leg.trace.headers if asked.leg.trace else {}
        named = {REQUEST_ID: asked.outer_id, **dict(asked.manner.headers)}
        headers = {**trace, **named, **self.key}
        call = NodeRequest(path, body, self.timeouts, headers)
        return await call.send(self.connections, asked.node.registration.http_address)

    def _answered(self, asked: "_LegCall", event: TicketEvent) -> None:
        """Decode was sent to coordinates that were true once."""
        if not self.vllm_nodes.learn_ticket(asked.node, asked.manner, event.ticket):
            reason = "it hands its KV over elsewhere than it did: it was started anew"
            raise NodeFailed(asked.node.node_id, reason, Cause.REFUSED)

    def _doubt(self, node: Node, leg: Leg) -> None:
        """What is known may be wrong, where a leg failed."""
        if leg.hold:
            self.vllm_nodes.doubt(node)
        elif leg.ticket is not None:
            self.vllm_nodes.doubt_engine(leg.ticket.engine_id)


@dataclass(frozen=True, slots=True)
class _LegCall:
    """One leg, and how it is asked for."""

    node: Node
    request: Request
    leg: Leg
    outer_id: str
    manner: LegHandOver

    def generate_body(self) -> bytes:
        """Raises UnsupportedByVllm."""
        params = self.manner.params
        return generate_body(self.request, self.outer_id, params, self.leg.hold)

    def completion_body(self) -> bytes:
        """Raises UnsupportedByVllm."""
        model, params = self.node.registration.model, self.manner.params
        return completion_body(self.request, model, params, self.leg.hold)
