"""Calls nodes over HTTP: the pipeline's NodeClient. For vLLM nodes see proxy/nodes/vllm.py."""

import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from api.generate import NodeCall, encode_call
from api.generator import Event, Leg, PooledEvent
from api.pooling.node_call import PATH, decode_pooled, encode_pooling
from discovery.node import Node
from discovery.signed_calls import Signing
from engine.request import PoolingRequest, Request
from proxy.errors import Cause, NodeFailed
from proxy.foreign.bodies import GENERATE
from proxy.foreign.vllm_nodes import VllmNodes
from proxy.nodes.answer_size import longest_vectors
from proxy.nodes.calling import ENDING_S, NodeRequest, read_whole
from proxy.nodes.connection_pool import NO_HEADERS, ConnectionPool
from proxy.nodes.failures import CALL_ERRORS, failure_of_error
from proxy.nodes.leg import HttpLeg
from proxy.nodes.patience import ReplyTimeouts
from proxy.nodes.reading import LegReader
from proxy.nodes.session import bearer_header
from proxy.nodes.vllm import VllmClient

FIRST_SIGN_S = 10.0  # our nodes send a reply's head within 4 s, whatever else they do
SILENCE_S = 10.0  # and a keep-alive every 2 s from then on
POOLING_S = 600.0  # our nodes send nothing while they pool
PART_S = 30.0  # how long a vLLM node may take for the rest of what it has begun


@dataclass(frozen=True, slots=True)
class HttpNodeClient:
    """The NodeClient over HTTP; `foreign_*` are for vLLM nodes."""

    connections: ConnectionPool
    silence_s: float = SILENCE_S
    foreign_silence_s: float | None = None  # None: no limit
    foreign_part_s: float = PART_S
    first_sign_s: float = FIRST_SIGN_S
    ending_s: float = ENDING_S
    vllm_nodes: VllmNodes = field(default_factory=VllmNodes)
    foreign_key: str | None = field(default=None, repr=False)
    signing: Signing = field(default_factory=Signing)

    def generate(
        self, node: Node, request: Request, leg: Leg
    ) -> AsyncGenerator[Event] | HttpLeg:
        """Call a node; closing the result closes the connection, which aborts. See NodeClient.

        The request id is only in the body: a node may find a leg in an id that comes as a
        header.
        """
        if not node.ours:
            parts = self.connections, self.vllm_nodes, self._foreign_timeouts, self.ending_s
            key = bearer_header(self.foreign_key)
            return VllmClient(*parts, key).generate(node, request, leg)
        reader = LegReader.of(request, leg, ours=True)
        call = NodeRequest(
            GENERATE,
            encode_call(NodeCall(request, leg, compact=True)),
            ReplyTimeouts(self.first_sign_s, self.silence_s),
            self._headers(leg),
        )
        return HttpLeg(self.connections, node, call, reader, self.ending_s)

    async def pool(
        self, node: Node, requests: Sequence[PoolingRequest]
    ) -> Sequence[PooledEvent]:
        """See PoolingClient."""
        if not node.ours and any(one.token_types for one in requests):
            reason = "a node of vLLM cannot be told a pair's segments"
            raise NodeFailed(node.node_id, reason, Cause.REFUSED)
        key = self._signed(PATH) if node.ours else bearer_header(self.foreign_key)
        patience = ReplyTimeouts(POOLING_S, POOLING_S) if node.ours else self._foreign_timeouts
        body = encode_pooling(requests, node.registration.model)
        call = NodeRequest(PATH, body, patience, key)
        try:
            with closing(await call.send_checked(self.connections, node)) as response:
                said = await read_whole(response, longest_vectors(requests))
                return decode_pooled(said, requests)
        except CALL_ERRORS as error:
            raise failure_of_error(node, error) from error

    def _headers(self, leg: Leg) -> Mapping[str, str]:
        """Trace and signature headers, for a pdserve node."""
        trace = leg.trace.headers if leg.trace else NO_HEADERS
        return {**trace, **self._signed(GENERATE)}

    def _signed(self, path: str) -> Mapping[str, str]:
        return self.signing.headers("POST", path)

    @property
    def _foreign_timeouts(self) -> ReplyTimeouts:
        """vLLM nodes may send nothing while they work, and write their answers at once."""
        told = self.foreign_silence_s
        silence_s = math.inf if told is None else told
        return ReplyTimeouts(silence_s, silence_s, self.foreign_part_s)
