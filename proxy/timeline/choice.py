"""The timeline of one choice: its events, counts and times. Pure.

Tokens are only counted: events are for what happens a few times in a request's life. A request
may be retried over and over, so the number of events is limited.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

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
from engine.request import FinishReason, Request
from proxy.errors import NodeFailed, ProxyExhausted
from proxy.timeline.events import (
    AttemptPlanned,
    LegEnded,
    LegFailed,
    LegKind,
    LegOpened,
    PromptAccepted,
    RetryDecided,
    StageEnded,
    TicketReceived,
    TimelineEvent,
)
from proxy.timeline.trace import Trace

CLOSED, FAILED, POOLED = "closed", "failed", "pooled"
MAX_EVENTS = 200
LONGEST_REASON = 400
MANY = 2
LEAST_S = 0.001  # predictions are not more exact than that
Prediction = tuple[float, float]
"""Predicted seconds from the plan to the first token, and to the last."""


@dataclass(slots=True)
class ChoiceTimeline:
    """Recorded by the pipeline; times are in seconds of the proxy's clock.

    `ending` is a finish reason, `closed` by the proxy (its client left, or a stop string was
    found), or `failed`. Tokens are those the client received; cached ones are those reported by
    the first node that accepted the prompt (`prompted`); `stages` are summed over all tries.
    `trace`: the trace context of its calls to nodes.
    """

    request: Request
    begun: float = 0.0
    trace: Trace | None = None
    prompted: bool = False
    cached_tokens: int = 0
    fetched_tokens: int = 0
    output_tokens: int = 0
    tries: int = 0
    moves: int = 0
    prefill: Node | None = None
    decode: Node | None = None
    planned_at: float | None = None  # of the first plan
    predicted: Prediction | None = None  # of the last plan
    first_at: float | None = None
    last_at: float | None = None  # of the last token, if the answer came to its end
    ended_at: float | None = None
    finish: FinishReason | None = None
    failure: str | None = None
    stages: dict[str, float] = field(default_factory=dict)
    events: list[TimelineEvent] = field(default_factory=list)
    dropped_events: int = 0  # beyond MAX_EVENTS
    _ticketed: bool = False  # in this try: a ticket comes again with the token

    def record_tokens(self, event: TokenEvent, now: float) -> None:
        """The first tokens or the last ones were sent to the client."""
        if self.first_at is None:
            self.first_at = now
        if event.finish is not None:
            self.finish, self.last_at = event.finish, now

    def record_plan(
        self,
        prefill: Node | None,
        decode: Node,
        now: float,
        predicted: Prediction | None = None,
        why: str = "",
    ) -> None:
        """A try begins on these nodes; `why` they were chosen: see AttemptPlanned."""
        self.tries, self.predicted = self.tries + 1, predicted
        if self.planned_at is None:
            self.planned_at = now
        self.prefill, self.decode, self._ticketed = prefill, decode, False
        first = prefill.address if prefill else None
        self._add(AttemptPlanned(now, first, decode.address, why, predicted))

    def record_call(self, node: Node, leg: Leg, now: float) -> Leg:
        """A leg is opened; returns it with the trace context that its node is sent."""
        kind: LegKind = "prefill" if leg.hold else "decode" if leg.ticket else "whole"
        if leg.ticket is not None and node is not self.decode:
            self.moves, self.decode = self.moves + 1, node
        context = self.trace.next_call() if self.trace else None
        self._add(LegOpened(now, node.address, kind, context.span_id if context else ""))
        return replace(leg, trace=context) if context else leg

    def record_event(self, node: Node, event: Event | NodeFailed, now: float) -> None:
        """A leg's event other than tokens, or its failure."""
        address = node.address
        match event:
            case StageEvent(stage=stage, seconds=seconds):
                self.stages[stage] = self.stages.get(stage, 0.0) + seconds
                values = stage, seconds, event.num_bytes, event.at_s
                self._add(StageEnded(now, address, *values))
            case PromptEvent(cached_tokens=cached, fetched_tokens=fetched):
                if not self.prompted:
                    self.cached_tokens, self.fetched_tokens = cached, fetched
                self.prompted = True
                self._add(PromptAccepted(now, address, cached, fetched))
            case TicketEvent() if not self._ticketed:
                self._ticketed = True
                self._add(TicketReceived(now, address))
            case EndEvent():
                self._add(LegEnded(now, address))
            case FailedEvent(reason=reason):
                self._add(LegFailed(now, address, reason[:LONGEST_REASON]))
            case NodeFailed():
                self._add(LegFailed(now, address, str(event)[:LONGEST_REASON]))

    def record_close(self, node: Node, now: float) -> None:
        """The proxy closed a prefill leg whose KV nobody will fetch any more."""
        self._add(LegEnded(now, node.address, taken=False))

    def record_retry(self, failure: NodeFailed | ProxyExhausted, now: float) -> None:
        """An attempt failed: there is another one, unless it was the last."""
        blamed = self._address_of(failure.node_id) if isinstance(failure, NodeFailed) else None
        self._add(RetryDecided(now, blamed, failure.cause, str(failure)[:LONGEST_REASON]))

    @property
    def nodes(self) -> list[Node]:
        """Those of the latest try, the prefill node first."""
        return [node for node in (self.prefill, self.decode) if node]

    @property
    def ending(self) -> str:
        """How the choice ended."""
        if self.failure is not None:
            return FAILED
        return self.finish.value if self.finish else CLOSED

    @property
    def first_token_s(self) -> float | None:
        """Seconds from its beginning to its first token (TTFT)."""
        return None if self.first_at is None else self.first_at - self.begun

    @property
    def plan_s(self) -> float | None:
        """Seconds from its beginning to its first plan: waiting for admission and nodes."""
        return None if self.planned_at is None else self.planned_at - self.begun

    @property
    def per_token_s(self) -> float | None:
        """Mean seconds between two tokens (TPOT); None with fewer than two."""
        if self.first_at is None or self.last_at is None or self.output_tokens < MANY:
            return None
        return (self.last_at - self.first_at) / (self.output_tokens - 1)

    @property
    def prediction_ratios(self) -> Iterator[tuple[str, float]]:
        """Actual over predicted time, to the first token and to the last.

        Nothing if there was a retry, a move to another decode node, or no regular end.
        """
        begun, first, last = self.planned_at, self.first_at, self.last_at
        if self.predicted is None or self.tries != 1 or self.moves:
            return
        if begun is not None and first is not None and last is not None:
            yield "first_token", (first - begun) / max(self.predicted[0], LEAST_S)
            yield "finish", (last - begun) / max(self.predicted[1], LEAST_S)

    @property
    def kv_transfers(self) -> Iterator[tuple[int, float]]:
        """The bytes of each KV transfer, and its seconds."""
        for event in self.events:
            if isinstance(event, StageEnded) and event.num_bytes:
                yield event.num_bytes, event.seconds

    @property
    def duration_s(self) -> float:
        """Seconds from its beginning to its end; 0 while it runs."""
        return 0.0 if self.ended_at is None else self.ended_at - self.begun

    def log_line(self, model: str, endpoint: str = "-") -> str:
        """The request's log line; with the last retry's reason if the request succeeded."""
        fields: dict[str, object] = {
            "request_id": self.request.request_id,
            "endpoint": endpoint,
            "model": model,
            "prompt_tokens": len(self.request.prompt),
            "cached_tokens": self.cached_tokens,
            "fetched_tokens": self.fetched_tokens,
            "output_tokens": self.output_tokens,
            "finish": self.ending,
            "nodes": self._nodes(),
            "tries": self.tries,
            "first_token_s": _rounded(self.first_token_s),
            "total_s": _rounded(self.duration_s),
            **{f"{stage}_s": _rounded(seconds) for stage, seconds in self.stages.items()},
        }
        if self.moves:
            fields["moves"] = self.moves
        if self.failure is not None:
            fields["reason"] = repr(self.failure)
        elif retried := [event for event in self.events if isinstance(event, RetryDecided)]:
            last = retried[-1]
            fields |= {"retry_node": last.node or "-", "retry_reason": repr(last.reason)}
        return " ".join(f"{name}={value}" for name, value in fields.items())

    def _address_of(self, node_id: str) -> str:
        """The address of a node of this try."""
        found = (node.address for node in self.nodes if node.node_id == node_id)
        return next(found, node_id)

    def _nodes(self) -> str:
        """The nodes of the last try; a decode node alone has run the prompt too."""
        return "->".join(node.address for node in self.nodes) or "-"

    def _add(self, event: TimelineEvent) -> None:
        if len(self.events) < MAX_EVENTS:
            self.events.append(event)
        else:
            self.dropped_events += 1


def _rounded(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.4f}"
