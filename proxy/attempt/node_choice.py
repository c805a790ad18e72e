"""Which nodes an attempt may use: healthy ones that have not failed the request, if any."""

from collections.abc import Sequence
from dataclasses import dataclass

from discovery.node import Joins, Node
from discovery.registration import Role
from discovery.registry import Registry
from proxy.attempt.progress import Progress
from proxy.health.health import Health
from proxy.routing.plan import Plan, RoutingQuery
from proxy.routing.planner import RoutePlanner

FEW_NODES = 64


@dataclass(frozen=True, slots=True)
class NodeChoice:
    """Chooses the nodes of a request's attempts: the planner's choice among the healthy ones.

    `progress` knows which nodes failed the request so far.
    """

    registry: Registry
    planner: RoutePlanner
    health: Health
    progress: Progress

    def plan(self, query: RoutingQuery) -> Plan | None:
        """Plan an attempt that begins now; None: there is no decode node at all."""
        no_failures = not (self.progress.failed_nodes or self.progress.failed_pairs)
        plan = self._plan_among_healthy(query) if no_failures else None
        if plan := plan or self._plan_around(query):
            self.progress.attempt_start = query.now
            self.health.begin_attempt(plan, now=query.now, after=self.progress.last_failure)
        return plan

    def healthy_decodes(self, now: float) -> Sequence[Node]:
        """The decode nodes that are healthy and have not failed this request."""
        healthy = self.health.healthy(self._decodes(now), now=now)
        failed = self.progress.failed_nodes
        return [one for one in healthy if one.node_id not in failed] if failed else healthy

    def _plan_among_healthy(self, query: RoutingQuery) -> Plan | None:
        """The fast path for requests without failures: it checks no node individually."""
        registry, health, now = self.registry, self.health, query.now
        blocked, blocked_pairs = health.blocked_nodes(now=now), health.blocked_pairs(now=now)
        decodes = health.without(self._decodes(now), blocked)
        if not decodes or (blocked_pairs and len(decodes) <= FEW_NODES):
            return None

        def partners(decode: Node) -> Sequence[Node]:
            healthy = health.without(registry.partners(decode, now=now), blocked)
            cut = {prefill for prefill, one in blocked_pairs if one == decode.node_id}
            return [one for one in healthy if one.node_id not in cut] if cut else healthy

        model = self.progress.request.model
        paired = registry.paired(Role.DECODE, now=now, model=model, but=blocked)
        return self.planner.plan(query, health.without(paired, blocked) or decodes, partners)

    def _plan_around(self, query: RoutingQuery) -> Plan | None:
        """Avoid nodes that are blocked or failed this request; prefer those with a partner."""
        registry, now = self.registry, query.now
        decodes = self.healthy_decodes(now) or self._last_resort_decodes(now)
        if not decodes:
            return None
        usable = self._pair_filter(now)
        paired = self._with_partner(decodes, usable, now)

        def partners(decode: Node) -> Sequence[Node]:
            return registry.partners(decode, usable, now=now)

        return self.planner.plan(query, paired or decodes, partners)

    def _pair_filter(self, now: float) -> Joins:
        """A filter: whether a prefill and a decode node may work together now."""
        health, blocked = self.health, self.health.blocked_nodes(now=now)
        no_failures = not (self.progress.failed_nodes or self.progress.failed_pairs)

        def usable(prefill: Node, decode: Node) -> bool:
            if prefill in blocked or not health.link_usable(prefill, decode, now=now):
                return False
            return no_failures or self.progress.may_pair(prefill, decode)

        return usable

    def _with_partner(
        self, decodes: Sequence[Node], usable: Joins, now: float
    ) -> Sequence[Node]:
        """Those with a usable partner; of many, with any, since few pairs are blocked."""
        if len(decodes) <= FEW_NODES:
            return [one for one in decodes if self.registry.has_partner(one, usable, now=now)]
        model, wanted = self.progress.request.model, frozenset(decodes)
        paired = self.registry.paired(Role.DECODE, now=now, model=model)
        return [one for one in paired if one in wanted]

    def _decodes(self, now: float) -> Sequence[Node]:
        return self.registry.nodes(Role.DECODE, now=now, model=self.progress.request.model)

    def _last_resort_decodes(self, now: float) -> Sequence[Node]:
        """Even nodes with an open breaker, except those that did not answer this request."""
        nodes, dead = self._decodes(now), self.progress.unresponsive_nodes
        alive = [one for one in nodes if one.node_id not in dead]
        return alive or self.health.healthy(nodes, now=now)
