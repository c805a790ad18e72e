"""Which plan ends earliest, by what prompts, steps and links have taken so far.

    with a prefill node:   wait, run, move the KV, decode
    without:               wait, run, decode; meanwhile those that decode there stand still

A request's own end is not all: one more in a batch slows each of the others, and a prompt that
is run beside them stops them all. What others lose counts as what the request itself loses;
else everybody would be sent where only the newest gains.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from math import inf
from operator import attrgetter, itemgetter
from random import Random
from typing import NamedTuple

from discovery.registration import Role
from discovery.registry import Node
from proxy.routing.claims import Claims
from proxy.routing.costs import Costs, of_batch, of_prompt, of_work
from proxy.routing.plan import Estimate, Plan, PlanReason, RoutingQuery
from proxy.routing.prefixes import PrefixIndex, block_tokens
from proxy.routing.sampling import MAX_CANDIDATES, sample_nodes

MOST_HOLDERS = 2
BEST = 2  # of each role are put together
EQUAL_S = 1e-9  # less than this is a draw, which chance decides
_cost = attrgetter("cost_s")
Partners = Callable[[Node], Sequence[Node]]


class NodeCost(NamedTuple):
    """What one node would take: seconds until its part is done, and what it costs in all.

    `missing`: the tokens of the prompt that it does not have.
    """

    cost_s: float
    seconds: float
    node: Node
    missing: int


@dataclass(frozen=True, slots=True)
class CostBased:
    """The cheapest plan among the likelier ones; as a policy, the cheaper node of a role."""

    claims: Claims
    prefixes: PrefixIndex
    costs: Costs
    chance: Random

    def choose(self, nodes: Sequence[Node], ask: RoutingQuery, partner: Node | None) -> Node:
        """See Policy."""
        if len(nodes) == 1:
            return nodes[0]
        if nodes[0].role is Role.DECODE:
            return min(self._decode_costs(nodes, ask), key=_cost).node
        begins = self._prefill_costs(nodes, ask)
        if partner is None:
            return min(begins, key=_cost).node
        end = self.decode_cost(partner, ask)
        return min(begins, key=lambda begin: begin.cost_s + self._link_s(begin, end)).node

    def plan(
        self, decodes: Sequence[Node], partners: Partners, ask: RoutingQuery, *, local: bool
    ) -> Plan:
        """Both nodes at once; with `local`, perhaps the decode node alone."""
        ends = self._decode_costs(decodes, ask)
        known, begins = None, list[NodeCost]()  # most decode nodes have the same partners
        best, plan = inf, None
        for end in nsmallest(BEST, ends, key=_cost):
            prefills = partners(end.node)
            if prefills is not known:
                known = prefills
                begins = nsmallest(BEST, self._prefill_costs(prefills, ask), key=_cost)
            for begin in begins:
                cost_s = begin.cost_s + self._link_s(begin, end) + end.cost_s
                if cost_s < best:
                    best, plan = cost_s, (begin, end)
        if plan and not local:
            return self._pair_plan(*plan)
        alone_s, first_s, end = min(
            ((*self._alone_cost(end, ask), end) for end in ends), key=itemgetter(0)
        )
        if plan is None:
            return _alone_plan(end, first_s, PlanReason.NO_PREFILL)
        return (
            self._pair_plan(*plan)
            if best <= alone_s
            else _alone_plan(end, first_s, PlanReason.CHEAPER)
        )

    def plan_pair(self, prefill: Node, decode: Node, ask: RoutingQuery) -> tuple[float, Plan]:
        """What this pair would cost."""
        begin, end = self._prefill_cost(prefill, ask), self.decode_cost(decode, ask)
        return begin.cost_s + self._link_s(begin, end) + end.cost_s, self._pair_plan(begin, end)

    def plan_alone(
        self, decode: Node, ask: RoutingQuery, why: PlanReason
    ) -> tuple[float, Plan]:
        """What it would cost to run all of it on a decode node."""
        end = self.decode_cost(decode, ask)
        cost_s, first_s = self._alone_cost(end, ask)
        return cost_s, _alone_plan(end, first_s, why)

    def decode_cost(self, node: Node, ask: RoutingQuery) -> NodeCost:
        """What a decode node would take from the first token on."""
        share, others = self.claims.at(node), self.claims.others_at(node)
        count, more, fit = (
            share.requests + others,
            self.costs.tokens_to_come(ask.request),
            self.costs.step(node),
        )
        each = share.tokens / share.requests if share.requests else ask.num_tokens
        held = share.tokens + others * each
        step_s = fit.at(of_batch(count + 1, held + ask.num_tokens + more / 2))
        slower_s = max(0.0, step_s - fit.at(of_batch(count, held)))
        seconds = more * step_s
        if node.load.total_blocks:
            seconds += self._room_s(node, ask.num_tokens + more, seconds)
        cost_s = seconds + count * more * slower_s + self.chance.random() * EQUAL_S
        return NodeCost(cost_s, seconds, node, self._missing(node, ask))

    def _alone_cost(self, end: NodeCost, ask: RoutingQuery) -> tuple[float, float]:
        """That cost, and when its first token would come: asked of many nodes for one plan."""
        node = end.node
        run_s = self._run_s(node, ask.num_tokens, end.missing)
        first_s = self._wait_s(node, ask) + run_s
        stopped_s = run_s * self.claims.requests_at(node)
        return first_s + self.chance.random() * EQUAL_S + end.cost_s + stopped_s, first_s

    def _pair_plan(self, begin: NodeCost, end: NodeCost) -> Plan:
        finish_s = begin.seconds + self._link_s(begin, end) + end.seconds
        return Plan(begin.node, end.node, Estimate(begin.seconds, finish_s))

    def _prefill_costs(self, nodes: Sequence[Node], ask: RoutingQuery) -> list[NodeCost]:
        return [self._prefill_cost(node, ask) for node in self._candidates(nodes, ask)]

    def _prefill_cost(self, node: Node, ask: RoutingQuery) -> NodeCost:
        missing = self._missing(node, ask)
        seconds = self._wait_s(node, ask) + self._run_s(node, ask.num_tokens, missing)
        return NodeCost(seconds + self.chance.random() * EQUAL_S, seconds, node, missing)

    def _decode_costs(self, nodes: Sequence[Node], ask: RoutingQuery) -> list[NodeCost]:
        return [self.decode_cost(node, ask) for node in self._candidates(nodes, ask)]

    def _room_s(self, node: Node, tokens: float, seconds: float) -> float:
        """Until there is room: others have to end, one every so often."""
        block, load = block_tokens(node), node.load
        free = load.free_blocks * block - self.claims.at(node).unheard_tokens(node)
        return max(0.0, seconds * (tokens - free) / (load.total_blocks * block))

    def _wait_s(self, node: Node, ask: RoutingQuery) -> float:
        """Until all prompts before it are done, less what the first of them had already."""
        share, others, wait_s = self.claims.at(node), self.claims.others_at(node), 0.0
        if others and node.role is Role.PREFILL:
            wait_s = others * self._run_s(node, ask.num_tokens, ask.num_tokens)
        if not share.ahead.prompts:
            return wait_s
        ahead_s = self.costs.prompt(node).at(of_work(share.ahead))
        had_s = max(0.0, ask.now - share.working_since)
        return wait_s + ahead_s - min(had_s, ahead_s / share.ahead.prompts)

    def _run_s(self, node: Node, tokens: int, missing: int) -> float:
        pairs = missing * (2 * tokens - missing) // 2
        return self.costs.prompt(node).at(of_prompt(missing, pairs))

    def _missing(self, node: Node, ask: RoutingQuery) -> int:
        """Of a prompt that is all there, the last token is computed again."""
        return max(1, ask.num_tokens - self.prefixes.cached(node, ask.prefix_hashes))

    def _link_s(self, begin: NodeCost, end: NodeCost) -> float:
        num_bytes = end.missing * bytes_of_token(end.node)
        return self.costs.link_s(begin.node, end.node, num_bytes)

    def _candidates(self, nodes: Sequence[Node], ask: RoutingQuery) -> Sequence[Node]:
        if len(nodes) <= MAX_CANDIDATES:
            return nodes
        holders = self.prefixes.holders(ask.prefix_hashes, MOST_HOLDERS)
        return sample_nodes(nodes, holders, self.chance)


def _alone_plan(end: NodeCost, first_s: float, why: PlanReason) -> Plan:
    return Plan(None, end.node, Estimate(first_s, first_s + end.seconds), why)


def bytes_of_token(node: Node) -> float:
    """Of its KV, as the layout has it; 0: it does not say."""
    layout = node.registration.kv_layout or {}
    regions, ranks = layout.get("block_bytes"), layout.get("tensor_parallel_size", 1)
    if not isinstance(regions, list | tuple) or not isinstance(ranks, int):
        return 0.0
    each = sum(one for one in regions if isinstance(one, int | float))
    return each * ranks / block_tokens(node)
