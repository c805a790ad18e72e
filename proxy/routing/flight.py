"""One plan under way: what it takes of nodes and gives back, and what is learnt from it."""

from dataclasses import dataclass, field
from typing import Self

from api.generator import EndEvent, Event, FailedEvent, PromptEvent, StageEvent, TokenEvent
from discovery.registry import Node
from engine.request import FinishReason
from proxy.errors import NodeFailed
from proxy.routing.claims import Claim, Claims, Prompt
from proxy.routing.costs import LEAST_TOKENS, Costs
from proxy.routing.plan import Ask, Plan
from proxy.routing.prefixes import Prefixes, Sent

LEAST_BYTES = 1  # of a hand-over, to say something about its link


@dataclass(frozen=True, slots=True)
class Books:
    """All that plans are made from."""

    claims: Claims = field(default_factory=Claims)
    prefixes: Prefixes = field(default_factory=Prefixes)
    costs: Costs = field(default_factory=Costs)


@dataclass(frozen=True, slots=True)
class _Steps:
    """How it stood when an answer's first token came from decode."""

    at: float
    requests: int
    tokens: int
    worked_s: float


@dataclass(slots=True, eq=False)
class Flight:
    """From `take_off` to `land`, which gives back whatever was taken, however it ended."""

    books: Books
    plan: Plan
    ask: Ask
    _prompt: Claim | None = None  # at the prefill node, while the prompt is run there
    _rest: Claim = field(init=False)
    _prompt_sent: Sent = field(init=False)
    _taken: bool = False
    _rest_sent: Sent | None = None  # where the KV is moved to, and is not yet
    _cached: int | None = None
    _ran: bool = False  # the prompt
    _moved_bytes: int = 0
    _first_at: float | None = None
    _steps: _Steps | None = None
    _tokens: int = 0  # from the decode node
    _finished: bool = False

    def take_off(self) -> Self:
        """Take what the plan will need; before anybody else plans, or anything is heard."""
        books, plan, ask = self.books, self.plan, self.ask
        self._taken = True
        self._prompt_sent = books.prefixes.send(plan.first, ask.names)
        cached = min(self._prompt_sent.cached_tokens, ask.num_tokens - 1)
        prompt = Prompt(ask.num_tokens - cached, cached)
        if plan.prefill is None:
            self._rest = self._claim(plan.decode, prompt)
            return self
        self._prompt = books.claims.claim(plan.prefill, ask.num_tokens, ask.now, prompt)
        self._rest_sent = books.prefixes.send(plan.decode, ask.names)
        self._rest = self._claim(plan.decode)
        return self

    def hear(self, node: Node, event: Event | NodeFailed, now: float) -> None:
        """What a leg says; called for every event, so most say nothing here."""
        match event:
            case TokenEvent():
                self._hear_tokens(node, event, now)
            case PromptEvent() if node is self.plan.first and self._cached is None:
                self._cached = event.cached_tokens
                (self._prompt or self._rest).told(event.cached_tokens)
            case StageEvent(stage="transfer"):
                self._moved_bytes = event.num_bytes
            case EndEvent() if node is self.plan.prefill and self._prompt:
                self._prompt_ran(now)  # vLLM says nothing of its token, only that it has run it
            case FailedEvent() | NodeFailed() if node is self.plan.prefill:
                self._prompt_over(now)

    def flowed(self, num_tokens: int) -> None:
        """So many more tokens of decode, neither its first nor its last."""
        self._tokens += num_tokens

    def move(self, decode: Node, now: float) -> None:
        """Another decode node takes the KV instead."""
        self._rest.end(now)
        if self._rest_sent:
            self._rest_sent.take_back()
        self._steps = None
        self.plan = Plan(self.plan.prefill, decode)
        self._rest = self._claim(decode)
        self._rest_sent = self.books.prefixes.send(decode, self.ask.names)

    def land(self, now: float) -> None:
        """It is over, if it has ever begun."""
        if not self._taken:
            return
        self._prompt_over(now)
        self._rest.end(now)
        if not self._ran:
            self._prompt_sent.take_back(self._cached)
        if self._rest_sent:
            self._rest_sent.take_back()

    def _claim(self, decode: Node, prompt: Prompt | None = None) -> Claim:
        more = round(self.books.costs.tokens_to_come(self.ask.request))
        tokens = self.ask.num_tokens + more
        return self.books.claims.claim(decode, tokens, self.ask.now, prompt)

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
        """At its first node, whoever said the first token."""
        self._ran = True
        claim = self._prompt or self._rest
        if measured := claim.ran(now):
            self.books.costs.ran(self.plan.first, measured)
        self._prompt_over(now)
        scored = self.ask.request.sampling.prompt_logprobs  # then it is run, cached or not
        self._prompt_sent.computed(self._cached if scored is None else None)

    def _prompt_over(self, now: float) -> None:
        if self._prompt is not None:
            self._prompt.end(now)
            self._prompt = None

    def _decode_begins(self, now: float) -> None:
        self._rest.decodes()
        share, plan = self._rest.share, self.plan
        self._steps = _Steps(now, self._decoding(), share.tokens, share.worked_s)
        if self._rest_sent:
            self._rest_sent.computed(None)
            self._rest_sent = None
        if plan.prefill and self._moved_bytes >= LEAST_BYTES and self._first_at is not None:
            late_s = max(0.0, now - self._first_at)
            self.books.costs.moved(plan.prefill, plan.decode, self._moved_bytes, late_s)

    def _decode_ends(self, event: TokenEvent, now: float) -> None:
        begun, share = self._steps, self._rest.share
        if begun is None or self._finished:
            return
        self._finished = True
        if self._tokens >= LEAST_TOKENS:
            spent, prompts_s = now - begun.at, share.worked_s - begun.worked_s
            step_s = max(spent - prompts_s, spent / LEAST_TOKENS) / self._tokens
            requests = (begun.requests + self._decoding()) / 2
            tokens = (begun.tokens + share.tokens) / 2
            self.books.costs.stepped(self.plan.decode, requests, tokens, step_s)
        if event.finish is FinishReason.STOP:
            self.books.costs.ended(len(self.ask.request.generated) + self._tokens + 1)

    def _decoding(self) -> int:
        return self._rest.share.decoding + self.books.claims.others_at(self.plan.decode)
