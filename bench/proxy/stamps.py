"""`python -m bench.proxy.stamps`: CPU time of one request's timeline, without its request.

A split request as a real one is: nine words of two nodes, stamped, told in a header, kept; then
the same with its spans, built for an exporter that throws them away.
"""

import statistics
import sys
import time
from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from api.generator import (
    EndEvent,
    Event,
    Leg,
    PromptEvent,
    StageEvent,
    TicketEvent,
    TokenEvent,
)
from discovery.node import Node
from discovery.registration import Registration, Role
from engine.request import FinishReason, Request, RequestId
from kv_transfer.ticket import KvTicket
from proxy.observing.rendering import server_timing
from proxy.observing.spans import Spans
from proxy.observing.timeline_store import TimelineStore
from proxy.timeline.choice import ChoiceTimeline
from proxy.timeline.exchange import HttpExchange

RUNS, REQUESTS, MICRO = 15, 1_000, 1e6
P = Node(Registration(Role.PREFILL, "10.0.0.1:8100", "", "p0"), heard_at=0)
D = Node(Registration(Role.DECODE, "10.0.0.2:8200", "", "d0"), heard_at=0)
REQUEST = Request(RequestId("0123456789abcdef0123456789abcdef"), tuple(range(500)))
TICKET = KvTicket("p0/x", "p0", "10.0.0.1", 21001, None)
LEGS = (P, Leg(hold=True, keep_open=True)), (D, Leg(ticket=TICKET, keep_open=True))
WORDS: Sequence[tuple[Node, Event]] = (
    (P, StageEvent("queue", 0.001, at_s=0.001)),
    (P, TicketEvent(TICKET)),
    (P, PromptEvent(0)),
    (P, StageEvent("prefill", 0.1, at_s=0.1)),
    (D, StageEvent("reserve", 0.001, at_s=0.001)),
    (D, PromptEvent(0)),
    (D, StageEvent("transfer", 0.01, 1 << 20, 0.12)),
    (P, EndEvent()),
    (D, StageEvent("decode", 1.0, at_s=1.1)),
)
FIRST, LAST = TokenEvent((1,)), TokenEvent((1,), FinishReason.STOP)


class Nowhere(SpanProcessor):
    """Spans end here."""

    def on_end(self, span: ReadableSpan) -> None:
        """It is thrown away."""


def one(kept: TimelineStore, spans: Spans | None, number: int) -> None:
    """From a request's first byte to its last."""
    clock = time.monotonic
    exchange = HttpExchange(clock(), time.time(), "/v1/chat/completions", status=200)
    exchange.request_id = f"{number:032x}"
    if spans:
        exchange.trace = spans.begin(exchange, None)
    kept.begin(exchange)
    timeline = ChoiceTimeline(REQUEST, clock(), exchange.trace)
    exchange.choices.append(timeline)
    timeline.record_plan(P, D, clock())
    for node, leg in LEGS:
        timeline.record_call(node, leg, clock())
    for node, word in WORDS:
        timeline.record_event(node, word, clock())
    timeline.record_tokens(FIRST, clock())
    timeline.record_tokens(LAST, clock())
    timeline.ended_at = clock()
    server_timing(exchange, clock())
    exchange.ended = clock()
    kept.end(exchange)
    if spans:
        spans.end(exchange)


def main() -> None:
    """The median of some runs."""
    for name, spans in (("timeline", None), ("and its spans", Spans(Nowhere(), "model"))):
        kept, times = TimelineStore(REQUESTS), list[float]()
        for _ in range(RUNS):
            since = time.process_time()
            for number in range(REQUESTS):
                one(kept, spans, number)
            times.append((time.process_time() - since) / REQUESTS * MICRO)
        kept_bytes = kept.num_bytes / REQUESTS
        sys.stdout.write(f"{name}: {statistics.median(times):.1f} us a request ")
        sys.stdout.write(f"(from {min(times):.1f}), {kept_bytes:.0f} bytes kept\n")


if __name__ == "__main__":
    main()
