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
from proxy.routing.plan import Ask, Estimate, Plan, Why
from proxy.routing.prefixes import Prefixes, block_tokens
from proxy.routing.sampling import MOST_LOOKED_AT, some_of

MOST_HOLDERS = 2
BEST = 2  # of each role are put together
EQUAL_S = 1e-9  # less than this is a draw, which chance decides
_cost = attrgetter("cost_s")
Partners = Callable[[Node], Sequence[Node]]


class Side(NamedTuple):
    """What one node would take: seconds until its part is done, and what it costs in all.

    `missing`: the tokens of the prompt that it does not have.
    """

    cost_s: float
    seconds: float
    node: Node
    missing: int


@dataclass(frozen=True, slots=True)
class Planned:
    """The cheapest plan among the likelier ones; as a policy, the cheaper node of a role."""

    claims: Claims
    prefixes: Prefixes
    costs: Costs
    chance: Random

    def choose(self, nodes: Sequence[Node], ask: Ask, partner: Node | None) -> Node:
        """See Policy."""
        if len(nodes) == 1:
            return nodes[0]
        if nodes[0].role is Role.DECODE:
            return min(self._ends(nodes, ask), key=_cost).node
        begins = self._begins(nodes, ask)
        if partner is None:
            return min(begins, key=_cost).node
        end = self.end(partner, ask)
        return min(begins, key=lambda begin: begin.cost_s + self._link_s(begin, end)).node

    def plan(
        self, decodes: Sequence[Node], partners: Partners, ask: Ask, *, local: bool
    ) -> Plan:
        """Both nodes at once; with `local`, perhaps the decode node alone."""
        ends = self._ends(decodes, ask)
        known, begins = None, list[Side]()  # most decode nodes have the same partners
        best, plan = inf, None
        for end in nsmallest(BEST, ends, key=_cost):
            prefills = partners(end.node)
            if prefills is not known:
                known = prefills
                begins = nsmallest(BEST, self._begins(prefills, ask), key=_cost)
            for begin in begins:
                cost_s = begin.cost_s + self._link_s(begin, end) + end.cost_s
                if cost_s < best:
                    best, plan = cost_s, (begin, end)
        if plan and not local:
            return self._joined(*plan)
        alone_s, first_s, end = min(
            ((*self._alone(end, ask), end) for end in ends), key=itemgetter(0)
        )
        if plan is None:
            return _whole(end, first_s, Why.NO_PREFILL)
        return self._joined(*plan) if best <= alone_s else _whole(end, first_s, Why.CHEAPER)

    def pair(self, prefill: Node, decode: Node, ask: Ask) -> tuple[float, Plan]:
        """What this pair would cost."""
        begin, end = self._begin(prefill, ask), self.end(decode, ask)
        return begin.cost_s + self._link_s(begin, end) + end.cost_s, self._joined(begin, end)

    def alone(self, decode: Node, ask: Ask, why: Why) -> tuple[float, Plan]:
        """What it would cost to run all of it on a decode node."""
        end = self.end(decode, ask)
        cost_s, first_s = self._alone(end, ask)
        return cost_s, _whole(end, first_s, why)

    def end(self, node: Node, ask: Ask) -> Side:
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
        return Side(cost_s, seconds, node, self._missing(node, ask))

    def _alone(self, end: Side, ask: Ask) -> tuple[float, float]:
        """That cost, and when its first token would come: asked of many nodes for one plan."""
        node = end.node
        run_s = self._run_s(node, ask.num_tokens, end.missing)
        first_s = self._wait_s(node, ask) + run_s
        stopped_s = run_s * self.claims.requests_at(node)
        return first_s + self.chance.random() * EQUAL_S + end.cost_s + stopped_s, first_s

    def _joined(self, begin: Side, end: Side) -> Plan:
        finish_s = begin.seconds + self._link_s(begin, end) + end.seconds
        return Plan(begin.node, end.node, Estimate(begin.seconds, finish_s))

    def _begins(self, nodes: Sequence[Node], ask: Ask) -> list[Side]:
        return [self._begin(node, ask) for node in self._some(nodes, ask)]

    def _begin(self, node: Node, ask: Ask) -> Side:
        missing = self._missing(node, ask)
        seconds = self._wait_s(node, ask) + self._run_s(node, ask.num_tokens, missing)
        return Side(seconds + self.chance.random() * EQUAL_S, seconds, node, missing)

    def _ends(self, nodes: Sequence[Node], ask: Ask) -> list[Side]:
        return [self.end(node, ask) for node in self._some(nodes, ask)]

    def _room_s(self, node: Node, tokens: float, seconds: float) -> float:
        """Until there is room: others have to end, one every so often."""
        block, load = block_tokens(node), node.load
        free = load.free_blocks * block - self.claims.at(node).unheard_tokens(node)
        return max(0.0, seconds * (tokens - free) / (load.total_blocks * block))

    def _wait_s(self, node: Node, ask: Ask) -> float:
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

    def _missing(self, node: Node, ask: Ask) -> int:
        """Of a prompt that is all there, the last token is computed again."""
        return max(1, ask.num_tokens - self.prefixes.cached(node, ask.names))

    def _link_s(self, begin: Side, end: Side) -> float:
        num_bytes = end.missing * bytes_of_token(end.node)
        return self.costs.link_s(begin.node, end.node, num_bytes)

    def _some(self, nodes: Sequence[Node], ask: Ask) -> Sequence[Node]:
        if len(nodes) <= MOST_LOOKED_AT:
            return nodes
        holders = self.prefixes.holders(ask.names, MOST_HOLDERS)
        return some_of(nodes, holders, self.chance)


def _whole(end: Side, first_s: float, why: Why) -> Plan:
    return Plan(None, end.node, Estimate(first_s, first_s + end.seconds), why)


def bytes_of_token(node: Node) -> float:
    """Of its KV, as the layout has it; 0: it does not say."""
    layout = node.registration.kv_layout or {}
    regions, ranks = layout.get("block_bytes"), layout.get("tensor_parallel_size", 1)
    if not isinstance(regions, list | tuple) or not isinstance(ranks, int):
        return 0.0
    each = sum(one for one in regions if isinstance(one, int | float))
    return each * ranks / block_tokens(node)
