"""Which plan ends earliest, by what prompts, steps and links have taken so far.

    with a prefill node:   wait, run, move the KV, decode
    without:               wait, run, decode; meanwhile those that decode there stand still

A request's own end is not all: one more in a batch slows each of the others, and a prompt that
is run beside them stops them all. What others lose counts as what the request itself loses;
else everybody would be sent where only the newest gains.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from random import Random
from typing import NamedTuple

from discovery.registration import Role
from discovery.registry import Node
from proxy.routing.claims import Claims, Prompt, Work
from proxy.routing.costs import Costs
from proxy.routing.plan import Ask, Estimate, Plan
from proxy.routing.prefixes import Prefixes, block_tokens
from proxy.routing.sampling import some_of

MOST_HOLDERS = 4
BEST = 3  # of each role are put together
_cost = attrgetter("cost_s")
Partners = Callable[[Node], Sequence[Node]]


class Side(NamedTuple):
    """What one node would take: seconds until its part is done, and what it costs in all."""

    cost_s: float
    seconds: float
    node: Node


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
        if nodes[0].role is Role.PREFILL:
            sides = self._prompts(nodes, ask)
            best = min(sides, key=lambda side: side.cost_s + self._link(side, partner, ask))
        else:
            best = min(self._decodes(nodes, ask), key=_cost)
        return best.node

    def plan(
        self, decodes: Sequence[Node], partners: Partners, ask: Ask, *, local: bool
    ) -> Plan:
        """Both nodes at once; with `local`, perhaps the decode node alone."""
        ends = sorted(self._decodes(decodes, ask), key=_cost)
        begins = dict[int, list[Side]]()  # most decode nodes have the same partners
        found = list[tuple[float, Plan]]()
        for end in ends[:BEST]:
            prefills = partners(end.node)
            if prefills and id(prefills) not in begins:
                sides = sorted(self._prompts(prefills, ask), key=_cost)
                begins[id(prefills)] = sides[:BEST]
            found += [self._joined(one, end, ask) for one in begins.get(id(prefills), ())]
        if local or not found:
            found += [self.alone(end, ask) for end in ends]
        return min(found, key=itemgetter(0))[1]

    def pair(self, prefill: Node, decode: Node, ask: Ask) -> tuple[float, Plan]:
        """What this pair would cost."""
        return self._joined(self._prompt(prefill, ask), self._decode(decode, ask), ask)

    def alone(self, end: Side, ask: Ask) -> tuple[float, Plan]:
        """What it would cost to run all of it on a decode node."""
        node = end.node
        run_s = self._run_s(node, ask)
        first_s = self._wait_s(node, ask) + run_s
        stopped_s = run_s * (self.claims.at(node).decoding + self.claims.others_at(node))
        estimate = Estimate(first_s, first_s + end.seconds)
        return first_s + end.cost_s + stopped_s, Plan(None, node, estimate)

    def end(self, decode: Node, ask: Ask) -> Side:
        """What a decode node would take from the first token on."""
        return self._decode(decode, ask)

    def _joined(self, begin: Side, end: Side, ask: Ask) -> tuple[float, Plan]:
        moved_s = self._link(begin, end.node, ask)
        finish_s = begin.seconds + moved_s + end.seconds
        plan = Plan(begin.node, end.node, Estimate(begin.seconds, finish_s))
        return begin.cost_s + moved_s + end.cost_s, plan

    def _prompts(self, nodes: Sequence[Node], ask: Ask) -> list[Side]:
        return [self._prompt(node, ask) for node in self._some(nodes, ask)]

    def _prompt(self, node: Node, ask: Ask) -> Side:
        seconds = self._wait_s(node, ask) + self._run_s(node, ask)
        return Side(seconds + self.chance.random() * 1e-9, seconds, node)

    def _decodes(self, nodes: Sequence[Node], ask: Ask) -> list[Side]:
        return [self._decode(node, ask) for node in self._some(nodes, ask)]

    def _decode(self, node: Node, ask: Ask) -> Side:
        share, others = self.claims.at(node), self.claims.others_at(node)
        count, more = share.requests + others, self.costs.tokens_to_come(ask.request)
        each = share.tokens / share.requests if share.requests else ask.num_tokens
        held = share.tokens + others * each
        step_s = self.costs.step_s(node, count + 1, held + ask.num_tokens + more / 2)
        slower_s = max(0.0, step_s - self.costs.step_s(node, count, held))
        seconds = more * step_s + self._room_s(node, ask, more, step_s)
        cost_s = seconds + count * more * slower_s + self.chance.random() * 1e-9
        return Side(cost_s, seconds, node)

    def _room_s(self, node: Node, ask: Ask, more: float, step_s: float) -> float:
        """Until there is room: others have to end, one every so often."""
        load = node.load
        if not load.total_blocks:
            return 0.0
        share = self.claims.at(node)
        free = load.free_blocks * block_tokens(node) - share.unheard_tokens(node)
        short = ask.num_tokens + more - free
        if short <= 0:
            return 0.0
        return more * step_s * short / (load.total_blocks * block_tokens(node))

    def _wait_s(self, node: Node, ask: Ask) -> float:
        """Until all prompts before it are done, less what the first of them had already."""
        share, others = self.claims.at(node), self.claims.others_at(node)
        others_s = 0.0
        if others and node.role is Role.PREFILL:
            others_s = others * self.costs.prompt_s(node, Work(1, ask.num_tokens))
        if not share.ahead.prompts:
            return others_s
        ahead_s = self.costs.prompt_s(node, share.ahead)
        had_s = max(0.0, ask.now - share.working_since)
        return others_s + ahead_s - min(had_s, ahead_s / share.ahead.prompts)

    def _run_s(self, node: Node, ask: Ask) -> float:
        cached = min(self.prefixes.cached(node, ask.names), ask.num_tokens - 1)
        prompt, work = Prompt(ask.num_tokens - cached, cached), Work()
        work.add(prompt)
        return self.costs.prompt_s(node, work)

    def _link(self, begin: Side, decode: Node | None, ask: Ask) -> float:
        if decode is None:
            return 0.0
        there = self.prefixes.cached(decode, ask.names)
        num_bytes = (ask.num_tokens - there) * bytes_of_token(decode)
        return self.costs.link_s(begin.node, decode, num_bytes)

    def _some(self, nodes: Sequence[Node], ask: Ask) -> Sequence[Node]:
        if len(nodes) == 1:
            return nodes
        holders = self.prefixes.holders(ask.names, MOST_HOLDERS)
        return some_of(nodes, holders, self.chance)


def bytes_of_token(node: Node) -> float:
    """Of its KV, as the layout has it; 0: it does not say."""
    layout = node.registration.kv_layout or {}
    regions, ranks = layout.get("block_bytes"), layout.get("tensor_parallel_size", 1)
    if not isinstance(regions, list | tuple) or not isinstance(ranks, int):
        return 0.0
    each = sum(one for one in regions if isinstance(one, int | float))
    return each * ranks / block_tokens(node)
