"""Each request's plan: made by policies, carried out as a flight."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from discovery.registry import Node
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
    """Whoever makes plans. Nothing of it waits."""

    def plan(self, ask: RoutingQuery, decodes: Sequence[Node], partners: Partners) -> Plan:
        """For one try. `decodes` is not empty; `partners` are the prefill nodes that fit."""

    def choose(self, nodes: Sequence[Node], ask: RoutingQuery, partner: Node | None) -> Node:
        """One node of a role: for a prompt alone, or in another's place beside `partner`."""

    def start(self, plan: Plan, ask: RoutingQuery) -> PlanInFlight:
        """It is carried out from when it takes off until it lands."""

    def pool(self, node: Node, lengths: Sequence[int], now: float) -> PoolingInFlight:
        """The same of prompts of these lengths that are pooled at a node."""


@dataclass(frozen=True, slots=True)
class Planner:
    """Decode's node first, as it works longest, then one of the prefill nodes that fit it;
    both at once where `judge` is the policy of both.

    `local` says whether a decode node runs a prompt itself although a prefill node is ready:
    `auto` where `judge` finds it cheaper. Without a prefill node it always does.
    """

    prefill: Policy
    decode: Policy
    cost_based: CostBased
    state: RoutingState
    local: LocalPrefill = "never"
    siblings: SiblingPlans = field(default_factory=SiblingPlans)
    capacity: NodeCapacity = field(default_factory=NodeCapacity)

    def plan(self, ask: RoutingQuery, decodes: Sequence[Node], partners: Partners) -> Plan:
        """See RoutePlanner."""
        decodes = self._with_room(decodes, ask)
        plan = self.siblings.plan(ask.request, decodes, partners)
        plan = plan or self._plan(ask, decodes, self._roomy(partners, ask))
        if plan.prefill and not _fits_context(
            plan.prefill, ask
        ):  # rare: only then all are looked at
            holding = partial(_partners_that_fit, partners, ask)
            plan = self._plan(ask, decodes, self._roomy(holding, ask))
        self.siblings.remember(ask.request, plan)
        return plan

    def choose(self, nodes: Sequence[Node], ask: RoutingQuery, partner: Node | None) -> Node:
        """See RoutePlanner."""
        if partner is None:
            some = self.capacity.with_room_or_all(nodes, self.state.claims, ask.num_tokens)
            return self.prefill.choose(some, ask, None)
        return self.decode.choose(self._with_room(nodes, ask), ask, partner)

    def start(self, plan: Plan, ask: RoutingQuery) -> PlanInFlight:
        """See RoutePlanner."""
        return PlanInFlight(self.state, plan, ask)

    def pool(self, node: Node, lengths: Sequence[int], now: float) -> PoolingInFlight:
        """See RoutePlanner."""
        return PoolingInFlight(self.state, node, lengths, now)

    def _with_room(self, decodes: Sequence[Node], ask: RoutingQuery) -> Sequence[Node]:
        tokens = ask.num_tokens + self.state.costs.tokens_to_come(ask.request)
        return self.capacity.with_room_or_all(decodes, self.state.claims, tokens)

    def _roomy(self, partners: Partners, ask: RoutingQuery) -> Partners:
        """Where decode nodes may run prompts, full prefill nodes get none."""
        if self.capacity.prefill == UNLIMITED:
            return partners
        among = (
            self.capacity.with_room_or_all if self.local == "never" else self.capacity.with_room
        )
        return lambda decode: among(partners(decode), self.state.claims, ask.num_tokens)

    def _plan(self, ask: RoutingQuery, decodes: Sequence[Node], partners: Partners) -> Plan:
        if self.prefill is self.decode is self.cost_based and self.local != "always":
            return self.cost_based.plan(decodes, partners, ask, local=self.local == "auto")
        decode = self.decode.choose(decodes, ask, None)
        prefills = () if self.local == "always" else partners(decode)
        if not prefills:
            why = PlanReason.ALWAYS if self.local == "always" else PlanReason.NO_PREFILL
            return self.cost_based.plan_alone(decode, ask, why)[1]
        pair_s, pair = self.cost_based.plan_pair(
            self.prefill.choose(prefills, ask, decode), decode, ask
        )
        if self.local != "auto":
            return pair
        alone_s, alone = self.cost_based.plan_alone(decode, ask, PlanReason.CHEAPER)
        return alone if alone_s < pair_s else pair


def _partners_that_fit(partners: Partners, ask: RoutingQuery, decode: Node) -> Sequence[Node]:
    return [one for one in partners(decode) if _fits_context(one, ask)]


def _fits_context(prefill: Node, ask: RoutingQuery) -> bool:
    """Whether its context has room for the prompt and a token; who does not say has it."""
    longest = prefill.registration.max_model_len
    return longest is None or ask.num_tokens < longest
