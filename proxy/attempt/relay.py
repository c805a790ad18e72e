"""Which of one attempt's events go on to the client, and what a failed leg means. Pure.

A leg's failure does not always end the attempt. While the prefill leg is open, its KV is on
offer, so a decode node that has no room, or dies before its first token, can be replaced by
another with the same ticket. Once the KV has arrived, the prefill leg is no longer needed; if
it breaks off just before, the decode node is given a moment to report that the KV is there.

    who fails   when                                  what follows
    prefill     before its token                      the attempt fails
                after it, decode has not started      decode has a moment to start, or it fails
                decode has started                    nothing; breakers learn of it
    decode      the KV is on offer, it may be retried another decode node, the same ticket
                otherwise                             the attempt fails

Decode has started once it sent a prompt event or a token: it has the KV, or runs the prompt.
While the client waits for the prompt's log-probabilities, no failure of prefill is passed over.
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
from discovery.node import Node
from kv_transfer.ticket import KvTicket
from proxy.attempt.legs import LegEvent, LegItem
from proxy.errors import Cause, NodeFailed
from proxy.routing.plan import Plan

FAILURES, ANSWERS = (FailedEvent, NodeFailed), (PromptEvent, TokenEvent)
LINGERING_TOKENS = 8  # of decode: by then prefill has long been told that its KV was fetched


@dataclass(slots=True)
class Relay:
    """Passes each token on once, and decides what a leg's failure means for the attempt.

    The decode leg repeats the first token, which is dropped. If the decode node had to compute
    the prompt itself, rounding may have led to another first token; then the attempt fails,
    since the client has the prefill node's. Only the prefill leg has the prompt's
    log-probabilities: while the relay awaits them, the decode leg's tokens are `held`.
    """

    plan: Plan
    awaits_prompt_logprobs: bool = False
    finished: bool = False
    forwarded: int = 0
    prefill_tokens: tuple[int, ...] = ()  # those that were forwarded
    received: Counter[Node] = field(default_factory=Counter)
    held: list[TokenEvent] = field(default_factory=list)
    decode_leg: Leg | None = None  # the latest, once it is open
    decode_replaced: bool = False  # `decode_leg` is not the first
    prefill_sampled: bool = False  # the prefill leg has sent its token
    prefill_closed: bool = False  # its leg has ended, or was closed
    decode_started: bool = False  # it has the KV, or computes the prompt itself
    decode_failure: NodeFailed | None = None  # until another decode leg is open
    # the prefill leg's, which no longer matters
    ignored_failure: NodeFailed | None = None
    prefill_failure: NodeFailed | None = None  # while decode may yet report its KV

    def ticket_for_decode(self, news: LegItem | None) -> KvTicket | None:
        """The ticket of this event, if the decode leg is to be opened with it."""
        if self.decode_leg or self.plan.prefill is None or news is None:
            return None
        return news[1].ticket if isinstance(news[1], TicketEvent) else None

    def prefill_gave_no_ticket(self, news: LegItem | None) -> bool:
        """Whether the prefill leg ended without a ticket: decode has to run the prompt."""
        return news is None and self.decode_leg is None and self.plan.prefill is not None

    def decode_opened(self, decode: Node, leg: Leg) -> None:
        """Record that this decode leg is open, the first or a replacement."""
        self.decode_replaced = self.decode_leg is not None
        self.plan = replace(self.plan, decode=decode)
        self.decode_leg, self.decode_failure = leg, None

    def pass_through(self, node: Node, event: LegEvent) -> TokenEvent | None:
        """The fast path: tokens that can go on unchanged, as only the decode leg is left and
        all it sent before was forwarded. None: `forward` the event.
        """
        if not isinstance(event, TokenEvent) or event.finish is not None:
            return None
        if self.awaits_prompt_logprobs:
            return None
        plan, received = self.plan, self.received
        decode_alone = self.prefill_closed if plan.prefill else self.decode_leg is None
        if not decode_alone or node is not plan.decode or received[node] != self.forwarded:
            return None
        if self.decode_leg and not self.decode_started:
            return None
        self.count_passed(len(event.tokens))
        return event

    def count_passed(self, num_tokens: int) -> None:
        """Count tokens of the decode leg that went on unchanged."""
        self.received[self.plan.decode] += num_tokens
        self.forwarded += num_tokens

    def forward(self, node: Node, event: LegEvent) -> Iterator[Event]:
        """Yield what is new in the event, and held tokens that it releases.

        Raises NodeFailed if it ends the attempt.
        """
        if isinstance(event, FAILURES):
            self._handle_failure(node, event)
            return
        if node is self.plan.prefill:
            self._note_prefill_event(event)
        elif self.decode_leg and isinstance(event, ANSWERS):
            self._note_decode_started()
        match event:
            case TokenEvent() if self.awaits_prompt_logprobs and node is not self.plan.first:
                self.held.append(event)
            case TokenEvent():
                yield from self._new_tokens(node, event)
            case PromptEvent() | StageEvent():
                yield event
        if isinstance(event, EndEvent) or (isinstance(event, PromptEvent) and event.logprobs):
            yield from self.release_held()

    def release_held(self) -> Iterator[Event]:
        """Yield held tokens: the prompt's log-probabilities came, or never will."""
        self.awaits_prompt_logprobs, held, self.held = False, self.held, []
        for event in held:
            yield from self._new_tokens(self.plan.decode, event)

    @property
    def needs_recovery(self) -> bool:
        """Whether `HandOver.recover` has anything to do; asked after each event."""
        return bool(self.ignored_failure or self.decode_failure or self.prefill_lingers)

    @property
    def prefill_lingers(self) -> bool:
        """Whether the prefill leg stays open although decode goes on without its KV.

        No node will fetch that KV, and only the end of the lease would free it.
        """
        if self.plan.prefill is None or self.prefill_closed or self.awaits_prompt_logprobs:
            return False
        return self.decode_started and self.received[self.plan.decode] >= LINGERING_TOKENS

    def _note_prefill_event(self, event: Event) -> None:
        self.prefill_sampled = self.prefill_sampled or isinstance(event, TokenEvent)
        self.prefill_closed = self.prefill_closed or isinstance(event, EndEvent)

    def _note_decode_started(self) -> None:
        """Decode has the KV, or computes the prompt: the prefill leg is no longer needed."""
        failure, self.prefill_failure = self.prefill_failure, None
        self.decode_started = True
        if failure and failure.node_id != self.plan.decode.node_id:
            self.ignored_failure = failure

    def _handle_failure(self, node: Node, event: FailedEvent | NodeFailed) -> None:
        failure = self._failure_of(node, event)
        if node is self.plan.prefill:
            self._prefill_failed(failure)
        elif self._can_replace_decode(event, failure):
            self.decode_failure = failure
        elif self.prefill_failure and self.prefill_failure.node_id != node.node_id:
            raise self.prefill_failure  # decode failed because prefill did
        else:
            raise failure

    def _failure_of(self, node: Node, event: FailedEvent | NodeFailed) -> NodeFailed:
        if isinstance(event, NodeFailed):
            return event
        blamed, pair = (self.plan.peer_of(node) if event.by_peer else node), None
        may_mean_replaced = self.decode_replaced and node is self.plan.prefill
        if event.by_peer and not may_mean_replaced:  # prefill may mean the decode node before
            pair = self.plan.pair
        return NodeFailed(
            blamed.node_id,
            event.reason,
            _cause(event),
            retryable=event.retryable,
            pair=pair,
            param=event.param,
        )

    def _prefill_failed(self, failure: NodeFailed) -> None:
        """Go on without the prefill leg if decode has what it needs, or may yet report so;
        otherwise raise the failure, since the prompt must run again.
        """
        if self.awaits_prompt_logprobs:  # no other leg has them
            raise failure
        blames_decode = failure.node_id == self.plan.decode.node_id
        decode_may_have_kv = self.prefill_sampled and self.decode_leg is not None
        if not (self.decode_started or blames_decode or decode_may_have_kv):
            raise failure
        self.prefill_closed = True
        if not self.decode_started:
            self.prefill_failure = failure
        elif not blames_decode:  # decode may have rejected bad KV, and runs the prompt itself
            self.ignored_failure = failure

    def _can_replace_decode(self, event: FailedEvent | NodeFailed, failure: NodeFailed) -> bool:
        """Whether another decode node can fetch the KV with the same ticket."""
        leg = self.decode_leg
        if leg is None or leg.ticket is None or not leg.keep_open:
            return False
        unasked_no_room = failure.no_room and not leg.elsewhere  # it was to wait for room
        offer_untouched = isinstance(event, NodeFailed) or event.parked
        offer_open = not (self.prefill_closed or self.decode_started)
        return offer_open and offer_untouched and failure.retryable and not unasked_no_room

    def _new_tokens(self, node: Node, event: TokenEvent) -> Iterator[TokenEvent]:
        """The event without tokens that were forwarded before.

        Raises NodeFailed if decode repeats other tokens than the prefill leg sent.
        """
        before = self.received[node]
        self.received[node] += len(event.tokens)
        fresh = max(0, self.received[node] - self.forwarded)
        self.forwarded += fresh
        self.finished = event.finish is not None
        known = len(event.tokens) - fresh
        if node is not self.plan.decode:
            self.prefill_tokens += event.tokens[known:]
        elif event.tokens[:known] != self.prefill_tokens[before : before + known]:
            other = (
                f"goes on from {event.tokens[:known]}, given was {self.prefill_tokens[before:]}"
            )
            raise NodeFailed(node.node_id, other, Cause.DIVERGED)
        if fresh or self.finished:
            tokens, logprobs = event.tokens[known:], event.logprobs[known:]
            yield TokenEvent(tokens, event.finish, event.stop_reason, logprobs)


def _cause(event: FailedEvent) -> Cause:
    """The cause of a node's failure; a node that is full or stops is not at fault."""
    if event.no_room:
        return Cause.NO_ROOM
    if event.leaving:
        return Cause.LEAVING
    return Cause.KV_TRANSFER if event.by_peer else Cause.NODE_ERROR
