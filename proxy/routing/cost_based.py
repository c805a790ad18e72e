"""The plan with the least predicted cost, by measured times of prompts, steps and transfers.

    with a prefill node:   wait, run, transfer the KV, decode
    without:               wait, run, decode; meanwhile requests that decode there are stopped

A plan's cost includes what other requests lose: one more in a batch slows each of them, and a
prompt that a decode node runs stops them. Their seconds count like the request's own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from math import inf
from operator import attrgetter, itemgetter
from random import Random
from typing import NamedTuple

from discovery.node import Node
from discovery.registration import Role
from proxy.routing.claims import Claims
from proxy.routing.costs import Costs, of_batch, of_prompt, of_work
from proxy.routing.plan import Estimate, Plan, PlanReason, RoutingQuery
from proxy.routing.prefixes import PrefixIndex, block_tokens, state_blocks
from proxy.routing.sampling import MAX_CANDIDATES, sample_nodes

MOST_HOLDERS = 2
BEST = 2  # of each role are combined
EQUAL_S = 1e-9  # less than this is a tie, which is broken at random
_cost = attrgetter("cost_s")
Partners = Callable[[Node], Sequence[Node]]


class NodeCost(NamedTuple):
    """The seconds of a node's part of a plan, and its cost including what other requests lose.

    `missing`: tokens of the prompt that the node has not cached.
    """

    cost_s: float
    seconds: float
    node: Node
    missing: int


@dataclass(frozen=True, slots=True)
class CostBased:
    """Chooses the cheapest plan among candidates; as a Policy, the cheapest node of a role."""

    claims: Claims
    prefixes: PrefixIndex
    costs: Costs
    chance: Random

    def choose(self, nodes: Sequence[Node], query: RoutingQuery, partner: Node | None) -> Node:
        """See Policy."""
        if len(nodes) == 1:
            return nodes[0]
        if nodes[0].role is Role.DECODE:
            return min(self._decode_costs(nodes, query), key=_cost).node
        begins = self._prefill_costs(nodes, query)
        if partner is None:
            return min(begins, key=_cost).node
        end = self.decode_cost(partner, query)
        return min(begins, key=lambda begin: begin.cost_s + self._link_s(begin, end)).node

    def plan(
        self, decodes: Sequence[Node], partners: Partners, query: RoutingQuery, *, local: bool
    ) -> Plan:
        """Choose both nodes at once; with `local`, the decode node alone if that is cheaper."""
        ends = self._decode_costs(decodes, query)
        known, begins = None, list[NodeCost]()  # most decode nodes have the same partners
        best, plan = inf, None
        for end in nsmallest(BEST, ends, key=_cost):
            prefills = partners(end.node)
            if prefills is not known:
                known = prefills
                begins = nsmallest(BEST, self._prefill_costs(prefills, query), key=_cost)
            for begin in begins:
                cost_s = begin.cost_s + self._link_s(begin, end) + end.cost_s
                if cost_s < best:
                    best, plan = cost_s, (begin, end)
        if plan and not local:
            return self._pair_plan(*plan)
        alone_s, first_s, end = min(
            ((*self._alone_cost(end, query), end) for end in ends), key=itemgetter(0)
        )
        if plan is None:
            return _alone_plan(end, first_s, PlanReason.NO_PREFILL)
        return (
            self._pair_plan(*plan)
            if best <= alone_s
            else _alone_plan(end, first_s, PlanReason.CHEAPER)
        )

    def plan_pair(self, prefill: Node, decode: Node, query: RoutingQuery) -> tuple[float, Plan]:
        """The cost of this pair, in seconds, and its plan."""
        begin, end = self._prefill_cost(prefill, query), self.decode_cost(decode, query)
        return begin.cost_s + self._link_s(begin, end) + end.cost_s, self._pair_plan(begin, end)

    def plan_alone(
        self, decode: Node, query: RoutingQuery, why: PlanReason
    ) -> tuple[float, Plan]:
        """The cost of a decode node that runs the prompt too, in seconds, and its plan."""
        end = self.decode_cost(decode, query)
        cost_s, first_s = self._alone_cost(end, query)
        return cost_s, _alone_plan(end, first_s, why)

    def decode_cost(self, node: Node, query: RoutingQuery) -> NodeCost:
        """The cost of decoding on this node, from the first token on."""
        share, others = self.claims.at(node), self.claims.others_at(node)
        count, more, fit = (
            share.requests + others,
            self.costs.tokens_to_come(query.request),
            self.costs.step(node),
        )
        each = share.tokens / share.requests if share.requests else query.num_tokens
        held = share.tokens + others * each
        step_s = fit.at(of_batch(count + 1, held + query.num_tokens + more / 2))
        slower_s = max(0.0, step_s - fit.at(of_batch(count, held)))
        seconds = more * step_s
        if node.load.total_blocks:
            seconds += self._room_s(node, query.num_tokens + more, seconds)
        cost_s = seconds + count * more * slower_s + self.chance.random() * EQUAL_S
        return NodeCost(cost_s, seconds, node, self._missing(node, query))

    def _alone_cost(self, end: NodeCost, query: RoutingQuery) -> tuple[float, float]:
        """The cost if decode runs the prompt too, and the seconds to the first token."""
        node = end.node
        run_s = self._run_s(node, query.num_tokens, end.missing)
        first_s = self._wait_s(node, query) + run_s
        stopped_s = run_s * self.claims.requests_at(node)
        return first_s + self.chance.random() * EQUAL_S + end.cost_s + stopped_s, first_s

    def _pair_plan(self, begin: NodeCost, end: NodeCost) -> Plan:
        finish_s = begin.seconds + self._link_s(begin, end) + end.seconds
        return Plan(begin.node, end.node, Estimate(begin.seconds, finish_s))

    def _prefill_costs(self, nodes: Sequence[Node], query: RoutingQuery) -> list[NodeCost]:
        return [self._prefill_cost(node, query) for node in self._candidates(nodes, query)]

    def _prefill_cost(self, node: Node, query: RoutingQuery) -> NodeCost:
        missing = self._missing(node, query)
        seconds = self._wait_s(node, query) + self._run_s(node, query.num_tokens, missing)
        return NodeCost(seconds + self.chance.random() * EQUAL_S, seconds, node, missing)

    def _decode_costs(self, nodes: Sequence[Node], query: RoutingQuery) -> list[NodeCost]:
        return [self.decode_cost(node, query) for node in self._candidates(nodes, query)]

    def _room_s(self, node: Node, tokens: float, seconds: float) -> float:
        """Seconds until there are enough free blocks, for which other requests have to end."""
        block, load = block_tokens(node), node.load
        free = load.free_blocks * block - self.claims.at(node).unheard_tokens(node)
        return max(0.0, seconds * (tokens - free) / (load.total_blocks * block))

    def _wait_s(self, node: Node, query: RoutingQuery) -> float:
        """Seconds until all prompts ahead are run, less what the first has already run."""
        share, others, wait_s = self.claims.at(node), self.claims.others_at(node), 0.0
        if others and node.role is Role.PREFILL:
            wait_s = others * self._run_s(node, query.num_tokens, query.num_tokens)
        if not share.ahead.prompts:
            return wait_s
        ahead_s = self.costs.prompt(node).at(of_work(share.ahead))
        had_s = max(0.0, query.now - share.working_since)
        return wait_s + ahead_s - min(had_s, ahead_s / share.ahead.prompts)

    def _run_s(self, node: Node, tokens: int, missing: int) -> float:
        pairs = missing * (2 * tokens - missing) // 2
        return self.costs.prompt(node).at(of_prompt(missing, pairs))

    def _missing(self, node: Node, query: RoutingQuery) -> int:
        """Tokens to compute; if the whole prompt is cached, the last one is computed again."""
        return max(1, query.num_tokens - self.prefixes.cached(node, query.prefix_hashes))

    def _link_s(self, begin: NodeCost, end: NodeCost) -> float:
        num_bytes = bytes_to_move(end.node, end.missing)
        return self.costs.link_s(begin.node, end.node, num_bytes)

    def _candidates(self, nodes: Sequence[Node], query: RoutingQuery) -> Sequence[Node]:
        if len(nodes) <= MAX_CANDIDATES:
            return nodes
        holders = self.prefixes.holders(query.prefix_hashes, MOST_HOLDERS)
        return sample_nodes(nodes, holders, self.chance)


def _alone_plan(end: NodeCost, first_s: float, why: PlanReason) -> Plan:
    return Plan(None, end.node, Estimate(first_s, first_s + end.seconds), why)


def bytes_to_move(node: Node, tokens: int) -> float:
    """Bytes of the KV of so many tokens, and of a state, over all ranks; 0: unknown."""
    regions = (node.registration.kv_layout or {}).get("block_bytes")
    if not isinstance(regions, list | tuple):
        return 0.0
    block_bytes = sum(one for one in regions if isinstance(one, int | float))
    return (tokens / block_tokens(node) + state_blocks(node)) * block_bytes
