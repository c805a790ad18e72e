"""Exports a request's timeline as OpenTelemetry spans. The only module that imports the SDK.

    POST /v1/chat/completions     server: the request, with the attributes of vLLM's and GenAI's
    ├── tokenize, admission, plan   the proxy's own
    ├── prefill                   client: one call of one node, which received this span's id
    │   ├── queue
    │   └── prefill               stages that the node reported, placed on our clock
    └── decode
        ├── reserve
        ├── transfer
        └── decode

The server span begins with the request, since its sampling decision is sent to nodes. The
others are created at the end, all at once, from the timeline. So nodes need no SDK and no
exporter.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from opentelemetry import trace as otel
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TraceFlags, TraceState

from api.trace_context import TraceContext
from proxy.observing.attributes import request_attributes, stage_attributes
from proxy.timeline.choice import ChoiceTimeline
from proxy.timeline.clock_alignment import LegTimeline, leg_timelines
from proxy.timeline.events import LegOpened, RetryDecided
from proxy.timeline.exchange import HttpExchange
from proxy.timeline.trace import Trace

SERVICE = "pdserve"
NANOSECONDS = 1e9
SERVER_ERROR = 500
NODE_KIND = SpanKind.CLIENT


@dataclass(slots=True)
class _Ids(RandomIdGenerator):
    """Generates span ids; the next one is `given`, if nodes were already sent it."""

    given: str | None = None

    def generate_span_id(self) -> int:
        """16 hexadecimal digits."""
        given, self.given = self.given, None
        return int(given, 16) if given else RandomIdGenerator.generate_span_id(self)


class Spans:
    """Begins and ends the spans of requests; `processor` owns those that have ended."""

    def __init__(self, processor: SpanProcessor, model: str) -> None:
        self._model, self._ids = model, _Ids()
        # a name that the user set in OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES goes first
        ours = Resource({SERVICE_NAME: SERVICE}).merge(_said())
        self._provider = TracerProvider(resource=ours, id_generator=self._ids)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer(SERVICE)

    def begin(self, exchange: HttpExchange, context: TraceContext | None) -> Trace | None:
        """Begin the request's span; None if the SDK is switched off."""
        span = self._tracer.start_span(
            f"POST {exchange.endpoint}",
            None if context is None else otel.set_span_in_context(_parent(context)),
            SpanKind.SERVER,
            start_time=_nanoseconds(exchange, exchange.received),
        )
        place = span.get_span_context()
        if not place.is_valid:
            return None if context is None else Trace(context)
        ours = TraceContext(
            otel.format_trace_id(place.trace_id),
            otel.format_span_id(place.span_id),
            place.trace_flags,
            place.trace_state.to_header(),
        )
        return Trace(ours, self._new_id if span.is_recording() else None, span)

    def end(self, exchange: HttpExchange) -> None:
        """The answer is over: create all other spans and end the request's."""
        span = cast("Span | None", exchange.trace and exchange.trace.span)
        if span is None or not span.is_recording():
            return
        span.set_attributes(request_attributes(exchange, self._model))
        if exchange.status is not None and exchange.status >= SERVER_ERROR:
            span.set_status(Status(StatusCode.ERROR))
        below = otel.set_span_in_context(span)
        for name, began, ended in exchange.steps():
            self._span(exchange, name, below, (began, ended)).end(_nanoseconds(exchange, ended))
        for timeline in exchange.choices:
            self._add_leg_spans(exchange, timeline, span, below)
        span.end(_nanoseconds(exchange, exchange.ended or exchange.received))

    def _add_leg_spans(
        self, exchange: HttpExchange, timeline: ChoiceTimeline, span: Span, below: Context
    ) -> None:
        """One choice: a span for each leg, an event for each retry."""
        for event in timeline.events:
            if isinstance(event, RetryDecided):
                why = {"pdserve.node": event.node or "", "pdserve.reason": event.reason}
                at = _nanoseconds(exchange, event.at)
                span.add_event("retry", {"pdserve.cause": event.cause, **why}, at)
        for leg, ended in _ends(timeline):
            if leg.call is not None:
                self._leg(exchange, timeline, leg, leg.call, ended, below)

    def _leg(
        self,
        exchange: HttpExchange,
        timeline: ChoiceTimeline,
        leg: LegTimeline,
        call: LegOpened,
        ended: float,
        below: Context,
    ) -> None:
        self._ids.given = call.span_id or None
        span = self._span(exchange, call.kind, below, (call.at, ended), NODE_KIND)
        self._ids.given = None
        host, _, port = call.node.rpartition(":")
        span.set_attributes(
            {"server.address": host, "pdserve.choice": timeline.request.request_id}
        )
        if port.isdigit():
            span.set_attribute("server.port", int(port))
        if leg.failed is not None:
            span.set_status(Status(StatusCode.ERROR, leg.failed.reason))
        inside = otel.set_span_in_context(span)
        for one in leg.placed():
            stage = self._span(exchange, one.stage.stage, inside, (one.began, one.ended))
            stage.set_attributes(stage_attributes(one.stage))
            stage.end(_nanoseconds(exchange, one.ended))
        span.end(_nanoseconds(exchange, ended))

    def _span(
        self,
        exchange: HttpExchange,
        name: str,
        parent: Context,
        times: tuple[float, float],
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Span:
        began = _nanoseconds(exchange, times[0])
        return self._tracer.start_span(name, parent, kind, start_time=began)

    def _new_id(self) -> str:
        return otel.format_span_id(RandomIdGenerator.generate_span_id(self._ids))


def otlp_spans(endpoint: str | None, model: str) -> Spans:
    """Exports spans by OTLP over HTTP; without an endpoint, to where OTEL_* variables say."""
    return Spans(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)), model)


def _said() -> Resource:
    """The environment's description of this service, without the SDK's placeholder name."""
    said = dict(Resource.create().attributes)
    if str(said.get(SERVICE_NAME, "")).startswith("unknown_service"):
        del said[SERVICE_NAME]
    return Resource(said)


def _parent(context: TraceContext) -> Span:
    place = otel.SpanContext(
        int(context.trace_id, 16),
        int(context.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(context.flags),
        trace_state=TraceState.from_header([context.state] if context.state else []),
    )
    return otel.NonRecordingSpan(place)


def _ends(timeline: ChoiceTimeline) -> Iterator[tuple[LegTimeline, float]]:
    """Each leg with its end as far as known: at the latest, that of the choice."""
    over = timeline.begun if timeline.ended_at is None else timeline.ended_at
    legs: Sequence[LegTimeline] = leg_timelines(timeline.events)
    for leg in legs:
        yield leg, over if leg.ended is None else leg.ended


def _nanoseconds(exchange: HttpExchange, at: float) -> int:
    """Nanoseconds since the Unix epoch."""
    return int((exchange.unix_s + at - exchange.received) * NANOSECONDS)
