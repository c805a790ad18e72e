"""A request's spans: one trace over proxy and nodes, sampled as the client says."""

from dataclasses import dataclass, field

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from api.generator import WHOLE, TokenEvent
from api.trace_context import TraceContext
from engine.request import Request, RequestId, Sampling
from proxy.observing.attributes import request_attributes
from proxy.observing.spans import Spans
from proxy.observing.tracing import build_tracing
from proxy.timeline.choice import ChoiceTimeline
from proxy.timeline.events import LegOpened
from proxy.timeline.exchange import HttpExchange
from tests.fakes.cluster import Cluster
from tests.fakes.engine import FakeEngine
from tests.fakes.node import Ill

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CLIENT = TraceContext(TRACE, SPAN, 1, "a=1")


@dataclass
class Rig:
    """Requests through a fake cluster, and the spans they leave."""

    cluster: Cluster = field(default_factory=lambda: Cluster(2, 2, small, turn_s=0.01))
    memory: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)

    def __post_init__(self) -> None:
        self.spans = Spans(SimpleSpanProcessor(self.memory), "tiny")

    async def answer(self, context: TraceContext | None = None, most: int = 8) -> HttpExchange:
        exchange = HttpExchange(
            self.cluster.now, 1e9, "/v1/completions", request_id="r", status=200
        )
        exchange.trace = self.spans.begin(exchange, context)
        request = Request(RequestId("r"), tuple(range(1, 12)), Sampling(most, seed=1))
        timeline = ChoiceTimeline(request, self.cluster.now, exchange.trace)
        exchange.choices.append(timeline)
        async for event in self.cluster.pipeline.stream(request, WHOLE, timeline=timeline):
            if isinstance(event, TokenEvent):
                timeline.record_tokens(event, self.cluster.now)
        timeline.ended_at = exchange.ended = self.cluster.now
        self.spans.end(exchange)
        return exchange

    def below(self, parent: ReadableSpan) -> list[ReadableSpan]:
        assert parent.context
        place = parent.context.span_id
        found = [one for one in self.memory.get_finished_spans() if one.parent]
        return [one for one in found if one.parent and one.parent.span_id == place]

    @property
    def root(self) -> ReadableSpan:
        (root,) = (
            one for one in self.memory.get_finished_spans() if one.kind is SpanKind.SERVER
        )
        return root


def small() -> FakeEngine:
    return FakeEngine(chunk=4)


async def test_a_split_request_is_one_tree_of_spans() -> None:
    rig = Rig()
    await rig.answer()
    assert rig.root.parent is None
    assert [one.name for one in rig.below(rig.root)] == [
        "tokenize",
        "plan",
        "prefill",
        "decode",
    ]
    prefill, decode = (one for one in rig.below(rig.root) if one.kind is SpanKind.CLIENT)
    assert [one.name for one in rig.below(prefill)] == ["queue", "prefill"]
    assert [one.name for one in rig.below(decode)] == ["reserve", "transfer", "decode"]
    for span in rig.memory.get_finished_spans():
        assert span.start_time is not None
        assert span.end_time is not None
        assert rig.root.start_time is not None
        assert rig.root.end_time is not None
        assert rig.root.start_time <= span.start_time <= span.end_time <= rig.root.end_time
        assert span.status.status_code is StatusCode.UNSET


async def test_the_request_has_the_attributes_that_dashboards_of_vllm_read() -> None:
    rig = Rig()
    exchange = await rig.answer()
    said = dict(rig.root.attributes or {})
    assert said["gen_ai.request.id"] == "r"
    assert said["gen_ai.response.model"] == "tiny"
    assert (said["gen_ai.usage.prompt_tokens"], said["gen_ai.usage.completion_tokens"]) == (
        11,
        8,
    )
    assert (said["gen_ai.request.max_tokens"], said["gen_ai.request.n"]) == (8, 1)
    (timeline,) = exchange.choices
    assert timeline.first_at is not None
    first_s = timeline.first_at - exchange.received
    assert said["gen_ai.latency.time_to_first_token"] == pytest.approx(first_s)
    assert {"gen_ai.latency.time_in_queue", "gen_ai.latency.e2e"} <= said.keys()
    assert said["gen_ai.response.finish_reasons"] == ("length",)


async def test_a_clients_trace_goes_on_and_each_node_gets_its_own_span() -> None:
    rig = Rig()
    exchange = await rig.answer(CLIENT)
    assert rig.root.parent
    assert f"{rig.root.parent.span_id:016x}" == SPAN
    assert {
        f"{one.context.trace_id:032x}" for one in rig.memory.get_finished_spans() if one.context
    } == {TRACE}
    legs = [mark.span_id for mark in exchange.choices[0].events if isinstance(mark, LegOpened)]
    spans = [one for one in rig.below(rig.root) if one.kind is SpanKind.CLIENT]
    assert [f"{one.context.span_id:016x}" for one in spans if one.context] == legs
    assert len(set(legs)) == 2
    assert exchange.trace
    place = exchange.trace.next_call()
    assert (place.trace_id, place.flags & 1, place.state) == (TRACE, 1, "a=1")


async def test_what_the_client_does_not_sample_leaves_no_span_and_nodes_are_told() -> None:
    rig = Rig()
    exchange = await rig.answer(TraceContext(TRACE, SPAN, 0))
    assert rig.memory.get_finished_spans() == ()
    assert exchange.trace
    assert exchange.trace.next_call().headers["traceparent"].startswith(f"00-{TRACE}-")
    assert not exchange.trace.next_call().sampled


async def test_a_retry_is_an_event_and_the_leg_that_broke_an_error() -> None:
    rig = Rig()
    rig.cluster.decodes[0].script[9] = Ill.KILL
    await rig.answer(most=12)
    legs = [one for one in rig.below(rig.root) if one.kind is SpanKind.CLIENT]
    broken = [one for one in legs if one.status.status_code is StatusCode.ERROR]
    assert [one.attributes and one.attributes["server.address"] for one in broken] == ["d0"]
    assert len(legs) == 4
    (event,) = rig.root.events
    assert event.name == "retry"
    assert event.attributes
    assert event.attributes["pdserve.node"] == "d0:80"


async def test_with_the_sdk_switched_off_a_clients_trace_is_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    rig = Rig()
    exchange = await rig.answer(CLIENT)
    assert exchange.trace
    assert exchange.trace.next_call() == CLIENT
    assert (await rig.answer()).trace is None
    assert rig.memory.get_finished_spans() == ()


async def test_the_users_name_of_the_service_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    await rig.answer()
    assert rig.root.resource.attributes["service.name"] == "pdserve"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "theirs")
    rig = Rig()
    await rig.answer()
    assert rig.root.resource.attributes["service.name"] == "theirs"


async def test_the_span_names_the_model_that_the_request_was_for() -> None:
    rig = Rig()
    exchange = HttpExchange(0.0, 1e9, "/v1/completions", request_id="r")
    exchange.trace = rig.spans.begin(exchange, None)
    exchange.choices.append(
        ChoiceTimeline(Request(RequestId("r"), (1,), model=("one of two", None)))
    )
    rig.spans.end(exchange)
    assert (rig.root.attributes or {})["gen_ai.response.model"] == "one of two"


def test_without_an_endpoint_there_are_no_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert build_tracing(None, "tiny") is None
    made = build_tracing("http://127.0.0.1:9/v1/traces", "tiny")
    assert isinstance(made, Spans)


@pytest.mark.parametrize(
    "endpoint", ["", "foo", "localhost:4318", "http://:4318", "http://a:b", "ftp://a/"]
)
def test_an_endpoint_that_is_no_url_is_refused_at_the_start(endpoint: str) -> None:
    with pytest.raises(SystemExit, match="which is no http"):
        build_tracing(endpoint, "tiny")


@pytest.mark.parametrize(
    ("path", "operation"),
    [
        ("/v1/chat/completions", "chat"),
        ("/v1/responses", "chat"),
        ("/v1/messages", "chat"),
        ("/v1/completions", "text_completion"),
        ("/rerank", None),
    ],
)
def test_an_endpoint_is_known_by_what_it_does(path: str, operation: str | None) -> None:
    told = request_attributes(HttpExchange(0.0, 1e9, path, request_id="r", status=200), "tiny")
    assert told.get("gen_ai.operation.name") == operation
