"""Each request's plan: made by policies, carried out as a flight."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from discovery.registry import Node
from proxy.admission.limits import ANY
from proxy.config import LocalPrefill
from proxy.routing.flight import Books, Flight
from proxy.routing.plan import Ask, Plan, Why
from proxy.routing.planned import Partners, Planned
from proxy.routing.policies import Policy
from proxy.routing.pooled import PooledFlight
from proxy.routing.room import Room
from proxy.routing.siblings import Siblings


class Plans(Protocol):
    """Whoever makes plans. Nothing of it waits."""

    def plan(self, ask: Ask, decodes: Sequence[Node], partners: Partners) -> Plan:
        """For one try. `decodes` is not empty; `partners` are the prefill nodes that fit."""

    def choose(self, nodes: Sequence[Node], ask: Ask, partner: Node | None) -> Node:
        """One node of a role: for a prompt alone, or in another's place beside `partner`."""

    def depart(self, plan: Plan, ask: Ask) -> Flight:
        """It is carried out from when it takes off until it lands."""

    def pool(self, node: Node, lengths: Sequence[int], now: float) -> PooledFlight:
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
    judge: Planned
    books: Books
    local: LocalPrefill = "never"
    siblings: Siblings = field(default_factory=Siblings)
    room: Room = field(default_factory=Room)

    def plan(self, ask: Ask, decodes: Sequence[Node], partners: Partners) -> Plan:
        """See Plans."""
        decodes = self._with_room(decodes, ask)
        plan = self.siblings.plan(ask.request, decodes, partners)
        plan = plan or self._plan(ask, decodes, self._roomy(partners, ask))
        if plan.prefill and not _holds(plan.prefill, ask):  # rare: only then all are looked at
            holding = partial(_holding, partners, ask)
            plan = self._plan(ask, decodes, self._roomy(holding, ask))
        self.siblings.remember(ask.request, plan)
        return plan

    def choose(self, nodes: Sequence[Node], ask: Ask, partner: Node | None) -> Node:
        """See Plans."""
        if partner is None:
            some = self.room.some(nodes, self.books.claims, ask.num_tokens)
            return self.prefill.choose(some, ask, None)
        return self.decode.choose(self._with_room(nodes, ask), ask, partner)

    def depart(self, plan: Plan, ask: Ask) -> Flight:
        """See Plans."""
        return Flight(self.books, plan, ask)

    def pool(self, node: Node, lengths: Sequence[int], now: float) -> PooledFlight:
        """See Plans."""
        return PooledFlight(self.books, node, lengths, now)

    def _with_room(self, decodes: Sequence[Node], ask: Ask) -> Sequence[Node]:
        tokens = ask.num_tokens + self.books.costs.tokens_to_come(ask.request)
        return self.room.some(decodes, self.books.claims, tokens)

    def _roomy(self, partners: Partners, ask: Ask) -> Partners:
        """Where decode nodes may run prompts, full prefill nodes get none."""
        if self.room.prefill == ANY:
            return partners
        among = self.room.some if self.local == "never" else self.room.only
        return lambda decode: among(partners(decode), self.books.claims, ask.num_tokens)

    def _plan(self, ask: Ask, decodes: Sequence[Node], partners: Partners) -> Plan:
        if self.prefill is self.decode is self.judge and self.local != "always":
            return self.judge.plan(decodes, partners, ask, local=self.local == "auto")
        decode = self.decode.choose(decodes, ask, None)
        prefills = () if self.local == "always" else partners(decode)
        if not prefills:
            why = Why.ALWAYS if self.local == "always" else Why.NO_PREFILL
            return self.judge.alone(decode, ask, why)[1]
        pair_s, pair = self.judge.pair(self.prefill.choose(prefills, ask, decode), decode, ask)
        if self.local != "auto":
            return pair
        alone_s, alone = self.judge.alone(decode, ask, Why.CHEAPER)
        return alone if alone_s < pair_s else pair


def _holding(partners: Partners, ask: Ask, decode: Node) -> Sequence[Node]:
    return [one for one in partners(decode) if _holds(one, ask)]


def _holds(prefill: Node, ask: Ask) -> bool:
    """Whether its context has room for the prompt and a token; who does not say has it."""
    longest = prefill.registration.max_model_len
    return longest is None or ask.num_tokens < longest
