"""Runs a pooling request: one call of a prefill node, retried at the next one."""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from api.generator import PooledEvent
from discovery.kinds import Model
from discovery.node import Node
from discovery.registration import Role
from engine.request import PoolingRequest, Request
from proxy.errors import NodeFailed, NoNodeAvailable, ProxyExhausted, without_frames
from proxy.health.failure_log import note_failure
from proxy.pipeline import REPLAN_INTERVAL_S, Pipeline
from proxy.routing.plan import Plan, RoutingQuery
from proxy.routing.pooling_in_flight import PoolingInFlight

LOOK_AFTER_S = 1.0


class PoolingClient(Protocol):
    """The call that a proxy makes to a node."""

    async def pool(
        self, node: Node, requests: Sequence[PoolingRequest]
    ) -> Sequence[PooledEvent]:
        """Raises NodeFailed; cancelling it aborts the call."""


@dataclass(slots=True)
class _Tries:
    count: int = 0
    begun: float = 0.0  # when the latest one did
    node: Node | None = None  # of the latest one
    failure: NodeFailed | ProxyExhausted | None = None
    failed: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class PoolingPipeline:
    """An Embedder over many nodes, with the registry, policy and timeouts of `pipeline`.

    Only a prefill node is needed. If none takes work, a decode node is asked, since every node
    can run a prompt. A node that leaves the registry during the call has failed: it may be
    silent for as long as a batch of prompts takes, so its heartbeat is watched instead.
    """

    pipeline: Pipeline
    client: PoolingClient
    look_after_s: float = LOOK_AFTER_S

    async def embed(self, requests: Sequence[PoolingRequest]) -> Sequence[PooledEvent]:
        """See Embedder."""
        tries = _Tries()
        while True:
            try:
                node = await self._choose(requests[0], tries)
                with self._begun(node, tries, requests) as flight:
                    pooled = await self._watched(node, self.client.pool(node, requests))
                    flight.prompts_finished(self.pipeline.clock())
            except (NodeFailed, ProxyExhausted) as failure:
                self._note(tries, without_frames(failure))
            except NoNodeAvailable as nobody:
                raise (tries.failure or nobody) from nobody
            else:
                health, now = self.pipeline.health, self.pipeline.clock()
                health.record_success(node, begun=tries.begun, now=now)
                return pooled

    @contextmanager
    def _begun(
        self, node: Node, tries: _Tries, requests: Sequence[PoolingRequest]
    ) -> Iterator[PoolingInFlight]:
        """Around a call: half-open, a node gets one at a time; its work counts in all plans."""
        health, plan = self.pipeline.health, Plan(None, node)
        lengths = [len(one.prompt) for one in requests]
        flight = self.pipeline.planner.pool(node, lengths, tries.begun)
        tries.node = node
        health.begin_attempt(plan, now=tries.begun, after=tries.failure)
        try:
            yield flight
        finally:
            flight.release(self.pipeline.clock())
            health.end_attempt(plan, begun=tries.begun)

    async def _choose(self, request: PoolingRequest, tries: _Tries) -> Node:
        """Choose a node; if there is none, wait for one as long as that is worthwhile."""
        pipeline = self.pipeline
        if tries.count > 1 or (tries.count and not self._candidates(tries, request.model)):
            await pipeline.sleep(pipeline.backoff.delay_s(tries.count))
        since = pipeline.clock()
        like = Request(request.request_id, request.prompt, cache_salt=request.cache_salt)
        model = request.model
        while True:
            if nodes := self._candidates(tries, model):
                tries.begun = pipeline.clock()
                ask = RoutingQuery.of(like, tries.begun)
                return pipeline.planner.choose(nodes, ask, None)
            if pipeline.clock() - since >= self._worth_waiting_s(tries, model):
                raise NoNodeAvailable("no prefill node is available")
            await asyncio.sleep(REPLAN_INTERVAL_S)

    def _candidates(self, tries: _Tries, model: Model | None) -> Sequence[Node]:
        """The nodes to choose from. One with an open breaker is better than none if it has not
        failed this request; one that has failed it is asked again when its breaker admits a
        call.
        """
        registry, health, now = (
            self.pipeline.registry,
            self.pipeline.health,
            self.pipeline.clock(),
        )
        nodes = {role: registry.nodes(role, now=now, model=model) for role in Role}
        well = [health.healthy(nodes[role], now=now) for role in (Role.PREFILL, Role.DECODE)]
        for found in (*well, *nodes.values()):
            if untried := [one for one in found if one.node_id not in tries.failed]:
                return untried
        return next(filter(None, well), ())

    def _worth_waiting_s(self, tries: _Tries, model: Model | None) -> float:
        pipeline, now = self.pipeline, self.pipeline.clock()
        seen = [pipeline.registry.last_seen(role, model) for role in Role]
        latest = max((one for one in seen if one is not None), default=None)
        lately = latest is not None and now - latest <= pipeline.recovery_wait_s
        hopeful = tries.failure or lately or now < pipeline.startup_until
        return pipeline.recovery_wait_s if hopeful else 0.0

    async def _watched(
        self, node: Node, call: Coroutine[Any, Any, Sequence[PooledEvent]]
    ) -> Sequence[PooledEvent]:
        asked = asyncio.create_task(call)
        try:
            while not asked.done():
                await asyncio.wait([asked], timeout=self.look_after_s)
                known = self.pipeline.registry.at(node.address)
                if not asked.done() and (known is None or known.node_id != node.node_id):
                    raise NodeFailed(node.node_id, "it is gone")
            return asked.result()
        finally:
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)

    def _note(self, tries: _Tries, failure: NodeFailed | ProxyExhausted) -> None:
        tries.failure, tries.count = failure, tries.count + 1
        if isinstance(failure, NodeFailed):
            if not failure.retryable:
                raise failure
            health, now = self.pipeline.health, self.pipeline.clock()
            nodes = [tries.node] if tries.node else []
            note_failure(health, failure, nodes, begun=tries.begun, now=now)
            tries.failed.add(failure.node_id)
        if tries.count >= self.pipeline.max_tries:
            raise failure
