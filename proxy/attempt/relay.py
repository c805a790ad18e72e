"""What of one attempt's events goes on to the client, and what a leg that fails means. Pure.

A leg's failure does not always end the attempt. While the prefill leg is open its KV is on
offer, so a decode node that has no room, or dies before its first token, is `missed`: another
can take its place with the same ticket. And once the KV has arrived nobody needs the prefill
leg any more; when that breaks off just before, decode is given a moment to say that it has.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from api.generator import (
    EndEvent,
    Event,
    FailedEvent,
    Leg,
    PromptEvent,
    StageEvent,
    TicketEvent,
    TokenEvent,
)
from discovery.registry import Node
from kv_transfer.ticket import KvTicket
from proxy.attempt.legs import News
from proxy.errors import Cause, NodeFailed
from proxy.routing.plan import Plan

FAILURES, ANSWERS = (FailedEvent, NodeFailed), (PromptEvent, TokenEvent)
LINGERING_TOKENS = 8  # of decode: by then prefill has long heard that its KV was fetched


@dataclass(slots=True)
class Relay:
    """Every token goes on once.

    The decode leg repeats the first token, which is left out. Where it had to compute the
    prompt itself, rounding may have brought it another one, which nothing may follow: the
    client has the first. It may be quicker than the prefill leg, which alone has the prompt's
    log-probabilities: `awaits` them, and what decode has to say is held until they are there.
    `orphaned` is why the prefill leg ended without its KV taken, as far as we know: decode's
    word may be on its way.
    """

    plan: Plan
    awaits: bool = False
    finished: bool = False
    forwarded: int = 0
    given: tuple[int, ...] = ()  # by the prefill leg, and forwarded
    said: Counter[Node] = field(default_factory=Counter)
    held: list[TokenEvent] = field(default_factory=list)
    leg: Leg | None = None  # the decode leg, once it is open
    moved: bool = False  # it is not the first
    sealed: bool = False  # the prefill leg has said its token
    parted: bool = False  # the prefill leg is over
    arrived: bool = False
    missed: NodeFailed | None = None
    ignored: NodeFailed | None = None  # the prefill leg's, which does not matter any more
    orphaned: NodeFailed | None = None

    def ticket(self, news: tuple[Node, News] | None) -> KvTicket | None:
        """What the decode leg has to be opened with, if it is time."""
        if self.leg or self.plan.prefill is None or news is None:
            return None
        return news[1].ticket if isinstance(news[1], TicketEvent) else None

    def ends_without_ticket(self, news: tuple[Node, News] | None) -> bool:
        """Whether decode has to run the prompt: its prefill leg is over, and gave no ticket."""
        return news is None and self.leg is None and self.plan.prefill is not None

    def begin(self, decode: Node, leg: Leg) -> None:
        """This decode leg is open now; `missed` is made good by it."""
        self.moved = self.leg is not None
        self.plan, self.leg, self.missed = replace(self.plan, decode=decode), leg, None

    def flowing(self, node: Node, event: News) -> TokenEvent | None:
        """Tokens that go on as they are, as decode alone speaks; None: `forward` it."""
        if not isinstance(event, TokenEvent) or event.finish is not None or self.awaits:
            return None
        plan, said = self.plan, self.said
        alone = self.parted if plan.prefill else self.leg is None
        if not alone or node is not plan.decode or said[node] != self.forwarded:
            return None
        if self.leg and not self.arrived:
            return None
        self.flowed(len(event.tokens))
        return event

    def flowed(self, num_tokens: int) -> None:
        """So many more go on as they are."""
        self.said[self.plan.decode] += num_tokens
        self.forwarded += num_tokens

    def forward(self, node: Node, event: News) -> Iterator[Event]:
        """What of it is new, and what it sets free; NodeFailed where the attempt is over."""
        if isinstance(event, FAILURES):
            self._fail(node, event)
            return
        if node is self.plan.prefill:
            self._prefill_said(event)
        elif self.leg and isinstance(event, ANSWERS):
            self._decode_goes_on()
        match event:
            case TokenEvent() if self.awaits and node is not self.plan.first:
                self.held.append(event)
            case TokenEvent():
                yield from self._fresh(node, event)
            case PromptEvent() | StageEvent():
                yield event
        if isinstance(event, EndEvent) or (isinstance(event, PromptEvent) and event.logprobs):
            yield from self.let_go()

    def let_go(self) -> Iterator[Event]:
        """There is nothing to wait for: the prompt's log-probabilities came, or never will."""
        self.awaits, held, self.held = False, self.held, []
        for event in held:
            yield from self._fresh(self.plan.decode, event)

    @property
    def ailing(self) -> bool:
        """Whether there is anything to mend; asked after each event."""
        return bool(self.ignored or self.missed or self.lingers)

    @property
    def lingers(self) -> bool:
        """Whether the prefill leg stays open although decode goes on without it: nobody has
        fetched its KV, nor will, and only the end of the lease would free it.
        """
        parted = self.parted or self.awaits or self.plan.prefill is None
        return self.arrived and not parted and self.said[self.plan.decode] >= LINGERING_TOKENS

    def _prefill_said(self, event: Event) -> None:
        self.sealed = self.sealed or isinstance(event, TokenEvent)
        self.parted = self.parted or isinstance(event, EndEvent)

    def _decode_goes_on(self) -> None:
        """Its KV has arrived, or it computes the prompt: prefill is not needed any more."""
        self.arrived, orphaned, self.orphaned = True, self.orphaned, None
        if orphaned and orphaned.node_id != self.plan.decode.node_id:
            self.ignored = orphaned

    def _fail(self, node: Node, event: FailedEvent | NodeFailed) -> None:
        failure = self._failure(node, event)
        if node is self.plan.prefill:
            self._prefill_failed(failure)
        elif self._can_move(event, failure):
            self.missed = failure
        elif self.orphaned and self.orphaned.node_id != node.node_id:
            raise self.orphaned  # the cause, and this is its effect
        else:
            raise failure

    def _failure(self, node: Node, event: FailedEvent | NodeFailed) -> NodeFailed:
        if isinstance(event, NodeFailed):
            return event
        blamed, pair = (self.plan.peer_of(node) if event.by_peer else node), None
        if event.by_peer and not (self.moved and node is self.plan.prefill):
            pair = self.plan.pair  # what prefill says of a peer may be of the one before
        return NodeFailed(
            blamed.node_id,
            event.reason,
            _cause(event),
            retryable=event.retryable,
            pair=pair,
            param=event.param,
        )

    def _prefill_failed(self, failure: NodeFailed) -> None:
        """No matter if its KV is over there, or may be; else the prompt has to run anew."""
        blames_decode = failure.node_id == self.plan.decode.node_id
        safe = self.arrived and not self.awaits
        if self.awaits or not (safe or blames_decode or (self.sealed and self.leg)):
            raise failure
        self.parted = True
        if not safe:
            self.orphaned = failure
        elif not blames_decode:  # which may have let go of KV that was bad, and runs the prompt
            self.ignored = failure

    def _can_move(self, event: FailedEvent | NodeFailed, failure: NodeFailed) -> bool:
        """Its KV is on offer as before: it said so, or it died without a word."""
        if self.leg is None or self.leg.ticket is None or not self.leg.keep_open:
            return False
        if failure.no_room and not self.leg.elsewhere:
            return False  # it was not asked
        parked = isinstance(event, NodeFailed) or event.parked
        return parked and not self.parted and not self.arrived and failure.retryable

    def _fresh(self, node: Node, event: TokenEvent) -> Iterator[TokenEvent]:
        before = self.said[node]
        self.said[node] += len(event.tokens)
        fresh = max(0, self.said[node] - self.forwarded)
        self.forwarded += fresh
        self.finished = event.finish is not None
        known = len(event.tokens) - fresh
        if node is not self.plan.decode:
            self.given += event.tokens[known:]
        elif event.tokens[:known] != self.given[before : before + known]:
            other = f"goes on from {event.tokens[:known]}, given was {self.given[before:]}"
            raise NodeFailed(node.node_id, other, Cause.DIFFERS)
        if fresh or self.finished:
            tokens, logprobs = event.tokens[known:], event.logprobs[known:]
            yield TokenEvent(tokens, event.finish, event.stop_reason, logprobs)


def _cause(event: FailedEvent) -> Cause:
    """Who is full, or stops, has done nothing wrong."""
    if event.no_room:
        return Cause.NO_ROOM
    if event.leaving:
        return Cause.LEAVING
    return Cause.PAIR if event.by_peer else Cause.TOLD
