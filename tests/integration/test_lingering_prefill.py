"""A prefill leg that goes on, or fails, while decode no longer needs it."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace

import pytest

from api.generator import Event, Leg, TicketEvent, TokenEvent
from discovery.node import Node
from engine.request import FinishReason, Request, RequestId, Sampling
from kv_transfer.ticket import KvTicket
from proxy.attempt.relay import LINGERING_TOKENS
from proxy.errors import Cause, NodeFailed
from tests.fakes.cluster import Cluster, tokens_of

PATIENCE_S = 10
ANSWER = list(range(1, LINGERING_TOKENS + 3))
REQUEST = Request(RequestId("r"), (1, 2, 3), Sampling(len(ANSWER)))


@dataclass
class Nodes:
    """A NodeClient. The prefill leg never ends by itself, or fails as soon as decode began.

    The decode leg sends its last tokens once the prefill leg is over.
    """

    fails: bool
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def generate(self, node: Node, request: Request, leg: Leg) -> AsyncGenerator[Event]:
        del request
        async for event in self.prefill(node) if leg.hold else self.decode():
            yield event

    async def prefill(self, node: Node) -> AsyncGenerator[Event]:
        try:
            yield TokenEvent((ANSWER[0],))
            yield TicketEvent(KvTicket("t", "e", "h", 1, None))
            await self.begun.wait()
            if self.fails:
                raise NodeFailed(node.node_id, "it is ill", Cause.BROKEN)
            await asyncio.Event().wait()
        finally:
            self.over.set()

    async def decode(self) -> AsyncGenerator[Event]:
        for token in ANSWER[:-2]:
            yield TokenEvent((token,))
            self.begun.set()
        await self.over.wait()
        yield TokenEvent((ANSWER[-2],))
        yield TokenEvent((ANSWER[-1],), FinishReason.LENGTH)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_prefill_leg_that_nobody_needs_is_closed_and_its_failure_counts_once(
    fails: bool,
) -> None:
    """Its KV would be kept until the answer's end."""
    cluster = Cluster(1, 1)
    pipeline = replace(cluster.pipeline, client=Nodes(fails))
    async with asyncio.timeout(PATIENCE_S):
        assert await tokens_of(pipeline.stream(REQUEST)) == ANSWER
    node = cluster.registry.find("p0")
    assert node
    assert cluster.health.failures == ({node.address: 1} if fails else {})
