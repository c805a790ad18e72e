"""Makes each attempt's plan by the policies of both roles."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from discovery.node import Node
from proxy.admission.limits import UNLIMITED
from proxy.config import LocalPrefill
from proxy.routing.capacity import NodeCapacity
from proxy.routing.cost_based import CostBased, Partners
from proxy.routing.in_flight import PlanInFlight, RoutingState
from proxy.routing.plan import Plan, PlanReason, RoutingQuery
from proxy.routing.policies import Policy
from proxy.routing.pooling_in_flight import PoolingInFlight
from proxy.routing.sibling_plans import SiblingPlans


class RoutePlanner(Protocol):
    """What the pipeline needs of a planner. No method blocks."""

    def plan(self, query: RoutingQuery, decodes: Sequence[Node], partners: Partners) -> Plan:
        """Plan an attempt. `decodes` is not empty; `partners`: prefill nodes of one."""

    def choose(self, nodes: Sequence[Node], query: RoutingQuery, partner: Node | None) -> Node:
        """Choose one node: for pooling, or a replacement decode node for `partner`'s KV."""

    def start(self, plan: Plan, query: RoutingQuery) -> PlanInFlight:
        """Carry out a plan; it counts from its `claim` to its `release`."""

    def pool(self, node: Node, lengths: Sequence[int], now: float) -> PoolingInFlight:
        """The same for pooling prompts of these lengths at a node."""


@dataclass(frozen=True, slots=True)
class Planner:
    """Chooses the decode node first, since it works longest, then one of its prefill partners;
    both at once if `cost_based` is the policy of both.

    `local`: whether a decode node runs a prompt itself although a prefill node is available;
    `auto` if `cost_based` finds that cheaper. Without a prefill node it always does.
    """

    prefill: Policy
    decode: Policy
    cost_based: CostBased
    state: RoutingState
    local: LocalPrefill = "never"
    siblings: SiblingPlans = field(default_factory=SiblingPlans)
    capacity: NodeCapacity = field(default_factory=NodeCapacity)

    def plan(self, query: RoutingQuery, decodes: Sequence[Node], partners: Partners) -> Plan:
        """See RoutePlanner."""
        decodes = self._with_room(decodes, query)
        plan = self.siblings.plan(query.request, decodes, partners)
        plan = plan or self._plan(query, decodes, self._roomy(partners, query))
        # rare: only then are all checked
        if plan.prefill and not _fits_context(plan.prefill, query):
            holding = partial(_partners_that_fit, partners, query)
            plan = self._plan(query, decodes, self._roomy(holding, query))
        self.siblings.remember(query.request, plan)
        return plan

    def choose(self, nodes: Sequence[Node], query: RoutingQuery, partner: Node | None) -> Node:
        """See RoutePlanner."""
        if partner is None:
            some = self.capacity.with_room_or_all(nodes, self.state.claims, query.num_tokens)
            return self.prefill.choose(some, query, None)
        return self.decode.choose(self._with_room(nodes, query), query, partner)

    def start(self, plan: Plan, query: RoutingQuery) -> PlanInFlight:
        """See RoutePlanner."""
        return PlanInFlight(self.state, plan, query)

    def pool(self, node: Node, lengths: Sequence[int], now: float) -> PoolingInFlight:
        """See RoutePlanner."""
        return PoolingInFlight(self.state, node, lengths, now)

    def _with_room(self, decodes: Sequence[Node], query: RoutingQuery) -> Sequence[Node]:
        tokens = query.num_tokens + self.state.costs.tokens_to_come(query.request)
        return self.capacity.with_room_or_all(decodes, self.state.claims, tokens)

    def _roomy(self, partners: Partners, query: RoutingQuery) -> Partners:
        """Partners with room; all if none has any, unless decode may run the prompt."""
        if self.capacity.prefill == UNLIMITED:
            return partners
        among = (
            self.capacity.with_room_or_all if self.local == "never" else self.capacity.with_room
        )
        return lambda decode: among(partners(decode), self.state.claims, query.num_tokens)

    def _plan(self, query: RoutingQuery, decodes: Sequence[Node], partners: Partners) -> Plan:
        if self.prefill is self.decode is self.cost_based and self.local != "always":
            return self.cost_based.plan(decodes, partners, query, local=self.local == "auto")
        decode = self.decode.choose(decodes, query, None)
        prefills = () if self.local == "always" else partners(decode)
        if not prefills:
            why = PlanReason.ALWAYS if self.local == "always" else PlanReason.NO_PREFILL
            return self.cost_based.plan_alone(decode, query, why)[1]
        pair_s, pair = self.cost_based.plan_pair(
            self.prefill.choose(prefills, query, decode), decode, query
        )
        if self.local != "auto":
            return pair
        alone_s, alone = self.cost_based.plan_alone(decode, query, PlanReason.CHEAPER)
        return alone if alone_s < pair_s else pair


def _partners_that_fit(partners: Partners, query: RoutingQuery, decode: Node) -> Sequence[Node]:
    return [one for one in partners(decode) if _fits_context(one, query)]


def _fits_context(prefill: Node, query: RoutingQuery) -> bool:
    """Whether its context holds the prompt and a token; unknown counts as yes."""
    longest = prefill.registration.max_model_len
    return longest is None or query.num_tokens < longest
