"""A plan in execution: what it claims of nodes, and what is learned from its events."""

from dataclasses import dataclass, field
from typing import Self

from api.generator import EndEvent, Event, FailedEvent, PromptEvent, StageEvent, TokenEvent
from discovery.node import Node
from engine.request import FinishReason
from proxy.errors import NodeFailed
from proxy.routing.claims import Claim, Claims, PromptSize
from proxy.routing.costs import LEAST_TOKENS, Costs
from proxy.routing.plan import Plan, RoutingQuery
from proxy.routing.prefixes import PrefixIndex, SentPrompt

LEAST_BYTES = 1  # of a transfer, to measure its link


@dataclass(frozen=True, slots=True)
class RoutingState:
    """The state that policies decide by, and that plans in flight update."""

    claims: Claims = field(default_factory=Claims)
    prefixes: PrefixIndex = field(default_factory=PrefixIndex)
    costs: Costs = field(default_factory=Costs)


@dataclass(frozen=True, slots=True)
class _DecodeStart:
    """The decode node's counts when it sent its first token."""

    at: float
    requests: int
    tokens: int
    worked_s: float


@dataclass(slots=True, eq=False)
class PlanInFlight:
    """A plan from `claim` until `release`, which gives back all claims, however it ended."""

    state: RoutingState
    plan: Plan
    query: RoutingQuery
    _prefill_claim: Claim | None = None  # while the prompt is run there
    _decode_claim: Claim = field(init=False)
    _prompt_sent: SentPrompt = field(init=False)
    _claimed: bool = False
    _decode_sent: SentPrompt | None = None  # until the KV is at the decode node
    _cached: int | None = None
    _ran: bool = False  # the prompt was run
    _moved_bytes: int = 0
    _first_at: float | None = None
    _steps: _DecodeStart | None = None
    _tokens: int = 0  # from the decode node
    _finished: bool = False

    def claim(self) -> Self:
        """Claim what the plan needs, before the next plan is made."""
        books, plan, query = self.state, self.plan, self.query
        self._claimed = True
        self._prompt_sent = books.prefixes.send(plan.first, query.prefix_hashes)
        cached = min(self._prompt_sent.cached_tokens, query.num_tokens - 1)
        prompt = PromptSize(query.num_tokens - cached, cached)
        if plan.prefill is None:
            self._decode_claim = self._claim_decode(plan.decode, prompt)
            return self
        self._prefill_claim = books.claims.claim(
            plan.prefill, query.num_tokens, query.now, prompt
        )
        self._decode_sent = books.prefixes.send(plan.decode, query.prefix_hashes)
        self._decode_claim = self._claim_decode(plan.decode)
        return self

    def record_event(self, node: Node, event: Event | NodeFailed, now: float) -> None:
        """Update claims and costs by an event of a leg."""
        match event:
            case TokenEvent():
                self._hear_tokens(node, event, now)
            case PromptEvent() if node is self.plan.first and self._cached is None:
                self._cached = event.cached_tokens
                (self._prefill_claim or self._decode_claim).set_cached(event.cached_tokens)
            case StageEvent(stage="transfer"):
                self._moved_bytes = event.num_bytes
            case EndEvent() if node is self.plan.prefill and self._prefill_claim:
                self._prompt_ran(now)  # a vLLM prefill leg sends no token
            case FailedEvent() | NodeFailed() if node is self.plan.prefill:
                self._prompt_over(now)

    def count_tokens(self, num_tokens: int) -> None:
        """Count tokens of decode, except its first and its last."""
        self._tokens += num_tokens

    def replace_decode(self, decode: Node, now: float) -> None:
        """Record that another decode node fetches the KV instead."""
        self._decode_claim.end(now)
        if self._decode_sent:
            self._decode_sent.take_back()
        self._steps = None
        self.plan = Plan(self.plan.prefill, decode)
        self._decode_claim = self._claim_decode(decode)
        self._decode_sent = self.state.prefixes.send(decode, self.query.prefix_hashes)

    def release(self, now: float) -> None:
        """Give back all claims, if there are any."""
        if not self._claimed:
            return
        self._prompt_over(now)
        self._decode_claim.end(now)
        if not self._ran:
            self._prompt_sent.take_back(self._cached)
        if self._decode_sent:
            self._decode_sent.take_back()

    def _claim_decode(self, decode: Node, prompt: PromptSize | None = None) -> Claim:
        more = round(self.state.costs.tokens_to_come(self.query.request))
        tokens = self.query.num_tokens + more
        return self.state.claims.claim(decode, tokens, self.query.now, prompt)

    def _hear_tokens(self, node: Node, event: TokenEvent, now: float) -> None:
        if self._first_at is None:
            self._first_at = now
            if not self._ran:
                self._prompt_ran(now)
        if node is self.plan.decode:
            if self._steps is None:
                self._decode_begins(now)
                self._tokens = 0
            else:
                self._tokens += len(event.tokens)
            if event.finish is not None:
                self._decode_ends(event, now)

    def _prompt_ran(self, now: float) -> None:
        """Record that the prompt was run at the plan's first node."""
        self._ran = True
        claim = self._prefill_claim or self._decode_claim
        if measured := claim.prompt_finished(now):
            self.state.costs.learn_prompts(self.plan.first, measured)
        self._prompt_over(now)
        scored = self.query.request.sampling.prompt_logprobs  # then it is run, cached or not
        self._prompt_sent.computed(self._cached if scored is None else None)

    def _prompt_over(self, now: float) -> None:
        if self._prefill_claim is not None:
            self._prefill_claim.end(now)
            self._prefill_claim = None

    def _decode_begins(self, now: float) -> None:
        self._decode_claim.decode_began()
        share, plan = self._decode_claim.node_claims, self.plan
        self._steps = _DecodeStart(now, self._decoding(), share.tokens, share.worked_s)
        if self._decode_sent:
            self._decode_sent.computed(None)
            self._decode_sent = None
        if plan.prefill and self._moved_bytes >= LEAST_BYTES and self._first_at is not None:
            late_s = max(0.0, now - self._first_at)
            self.state.costs.learn_transfer(
                plan.prefill, plan.decode, self._moved_bytes, late_s
            )

    def _decode_ends(self, event: TokenEvent, now: float) -> None:
        begun, share = self._steps, self._decode_claim.node_claims
        if begun is None or self._finished:
            return
        self._finished = True
        if self._tokens >= LEAST_TOKENS:
            spent, prompts_s = now - begun.at, share.worked_s - begun.worked_s
            step_s = max(spent - prompts_s, spent / LEAST_TOKENS) / self._tokens
            requests = (begun.requests + self._decoding()) / 2
            tokens = (begun.tokens + share.tokens) / 2
            self.state.costs.learn_step(self.plan.decode, requests, tokens, step_s)
        if event.finish is FinishReason.STOP:
            self.state.costs.learn_output(len(self.query.request.generated) + self._tokens + 1)

    def _decoding(self) -> int:
        return self._decode_claim.node_claims.decoding + self.state.claims.others_at(
            self.plan.decode
        )
