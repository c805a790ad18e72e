"""Calls vLLM nodes, over either of their endpoints and with any of their KV connectors.

Such a node sends nothing during prefill, so there is no timeout unless one is set.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, closing
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

from api.generated import decode_event
from api.generator import Event, FailedEvent, Leg, TicketEvent
from discovery.node import Node
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
from proxy.foreign.replay import Replay
from proxy.foreign.vllm_nodes import LegHandOver, VllmNodes
from proxy.nodes.calling import OK, NodeRequest, check_status, read_leg, read_whole
from proxy.nodes.connection import NodeConnection
from proxy.nodes.connection_pool import ConnectionPool
from proxy.nodes.failures import CALL_ERRORS, failure_of_error
from proxy.nodes.patience import ReplyTimeouts
from proxy.nodes.reading import LegReader

NOT_SERVED = {403, 404, 405}  # 403: vLLM runs without --enable-scale-out
QUERY = "/query"
LONGEST_QUERY = 1 << 20
QUERY_PATIENCE = ReplyTimeouts(5.0, 5.0)
REQUEST_ID = "X-Request-Id"


@dataclass(frozen=True, slots=True)
class VllmClient:
    """Opens legs at vLLM nodes; `vllm_nodes` remembers what was found out about each."""

    connections: ConnectionPool
    vllm_nodes: VllmNodes
    timeouts: ReplyTimeouts
    ending_s: float
    key: Mapping[str, str]

    async def generate(self, node: Node, request: Request, leg: Leg) -> AsyncGenerator[Event]:
        """See NodeClient. With push connectors the ticket comes first: legs run at once."""
        outer_id = leg.outer_id or uuid4().hex
        hand_over = await self._hand_over(node, leg, outer_id)
        if hand_over.ticket is not None:
            yield TicketEvent(hand_over.ticket)
        replay = Replay.of(node.node_id, request)
        reader = LegReader.of(replay.request, leg, ours=False)
        leg_call = _LegCall(node, replay.request, leg, outer_id, hand_over)
        send = partial(self._send, leg_call, reader)
        try:
            async with aclosing(read_leg(node, reader, send, self.ending_s)) as events:
                async for event in events:
                    if isinstance(event, FailedEvent):
                        self._doubt(node, leg)
                    elif isinstance(event, TicketEvent):
                        self._learn_ticket(leg_call, event)
                    if (new := replay.new_part(event)) is not None:
                        yield new
        except NodeFailed:
            self._doubt(node, leg)
            raise

    async def _hand_over(self, node: Node, leg: Leg, outer_id: str) -> LegHandOver:
        now = asyncio.get_running_loop().time()
        bootstrap = self.vllm_nodes.bootstrap(node, now) if leg.hold else None
        if bootstrap is not None:
            call = NodeRequest(QUERY, b"", QUERY_PATIENCE)
            try:
                with closing(await call.send(self.connections, bootstrap)) as response:
                    ok = response.status == OK
                    said = await read_whole(response, LONGEST_QUERY) if ok else b""
                self.vllm_nodes.learn_engines(node, said, now)
            except CALL_ERRORS as error:
                raise failure_of_error(node, error) from error
        return self.vllm_nodes.hand_over(node, leg, outer_id)

    async def _send(self, leg_call: "_LegCall", reader: LegReader) -> NodeConnection:
        """Call the endpoint for token ids, or `/v1/completions` if that does not exist."""
        node, vllm_nodes = leg_call.node, self.vllm_nodes
        likeliest = leg_call.request.sampling.logprobs
        reader.decode = partial(decode_event, likeliest=likeliest)
        try:
            if vllm_nodes.generates(node):
                response = await self._send_to(leg_call, GENERATE, leg_call.generate_body())
                if response.status not in NOT_SERVED:
                    return await check_status(node, response)
                response.close()
                vllm_nodes.lacks_generate(node)
            body = leg_call.completion_body()
        except UnsupportedByVllm as error:
            cause = Cause.REFUSED
            raise NodeFailed(
                node.node_id, str(error), cause, retryable=False, param=error.param
            ) from error
        reader.decode = partial(decode_completion, likeliest=likeliest)
        response = await self._send_to(leg_call, COMPLETIONS, body)
        if response.status in NOT_SERVED:
            vllm_nodes.retry_generate(node)
        return await check_status(node, response)

    async def _send_to(self, leg_call: "_LegCall", path: str, body: bytes) -> NodeConnection:
        trace = leg_call.leg.trace.headers if leg_call.leg.trace else {}
        named = {REQUEST_ID: leg_call.outer_id, **dict(leg_call.hand_over.headers)}
        headers = {**trace, **named, **self.key}
        call = NodeRequest(path, body, self.timeouts, headers)
        return await call.send(self.connections, leg_call.node.address)

    def _learn_ticket(self, leg_call: "_LegCall", event: TicketEvent) -> None:
        """Learn from the ticket; raises NodeFailed if decode got outdated coordinates."""
        if not self.vllm_nodes.learn_ticket(leg_call.node, leg_call.hand_over, event.ticket):
            reason = "it hands its KV over elsewhere than it did: it was started anew"
            raise NodeFailed(leg_call.node.node_id, reason, Cause.REFUSED)

    def _doubt(self, node: Node, leg: Leg) -> None:
        """After a failed leg, forget what may have changed."""
        if leg.hold:
            self.vllm_nodes.doubt(node)
        elif leg.ticket is not None:
            self.vllm_nodes.doubt_engine(leg.ticket.engine_id)


@dataclass(frozen=True, slots=True)
class _LegCall:
    """One leg, and how its node hands KV over."""

    node: Node
    request: Request
    leg: Leg
    outer_id: str
    hand_over: LegHandOver

    def generate_body(self) -> bytes:
        """See bodies.generate_body; raises UnsupportedByVllm."""
        params = self.hand_over.params
        return generate_body(self.request, self.outer_id, params, self.leg.hold)

    def completion_body(self) -> bytes:
        """See bodies.completion_body; raises UnsupportedByVllm."""
        model, params = self.node.registration.model, self.hand_over.params
        return completion_body(self.request, model, params, self.leg.hold)
