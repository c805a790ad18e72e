"""What a proxy's page counts of choices, of admission, of connections and of failures."""

from typing import cast

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from api.door.limiter import ConnectionLimiter, LimitedConnection
from api.generator import PromptEvent, StageEvent, TokenEvent
from discovery.node import Node
from discovery.registration import Registration, Role
from discovery.registry import Registry
from engine.request import FinishReason, Request, RequestId
from proxy.admission.gate import AdmissionGate
from proxy.errors import Cause, NodeFailed
from proxy.health.health import Health
from proxy.observing.admission_metrics import AdmissionMetrics, ConnectionMetrics
from proxy.observing.failure_metrics import FailureMetrics
from proxy.observing.metrics import ProxyMetrics
from proxy.timeline.choice import ChoiceTimeline
from tests.unit.test_admission import door
from tests.unit.test_health import beat, breaks, cluster

P0 = Node(Registration(Role.PREFILL, "p:1", "", "p0"), heard_at=0)
D0 = Node(Registration(Role.DECODE, "d:1", "", "d0"), heard_at=0)
REQUEST = Request(RequestId("r"), (1, 2, 3))
LEFT_OUT = "_created", "_bucket"


def page_of(registry: CollectorRegistry) -> dict[str, float]:
    """Each sample that is not 0, under its name and its labels; no buckets."""
    return {
        "/".join([one.name.removeprefix("pdserve_proxy_"), *one.labels.values()]): one.value
        for family in registry.collect()
        for one in family.samples
        if one.value and not one.name.endswith(LEFT_OUT)
    }


def page(*collectors: Collector) -> dict[str, float]:
    registry = CollectorRegistry()
    for one in collectors:
        registry.register(one)
    return page_of(registry)


def empty() -> ProxyMetrics:
    registry = Registry()
    return ProxyMetrics(registry, Health(registry))


def test_each_number_of_a_choice_is_where_it_belongs() -> None:
    timeline, metrics = ChoiceTimeline(REQUEST, 10.0), empty()
    timeline.record_plan(P0, D0, 11.0, (0.5, 4.0))
    timeline.record_event(P0, PromptEvent(2, fetched_tokens=1), 11.0)
    timeline.record_event(P0, StageEvent("prefill", 0.25), 11.5)
    timeline.record_event(D0, StageEvent("transfer", 0.5, 4096), 12.0)
    timeline.record_tokens(TokenEvent((7,)), 12.0)
    timeline.record_tokens(TokenEvent((8, 9), FinishReason.STOP), 15.0)
    timeline.output_tokens, timeline.ended_at = 3, 16.0
    metrics.record_choice(timeline)
    assert page_of(metrics.all) == {
        "answers_total/stop": 1,
        "tokens_total/prompt": 3,
        "tokens_total/cached": 2,
        "tokens_total/fetched": 1,
        "tokens_total/output": 3,
        "time_to_first_token_seconds_count": 1,
        "time_to_first_token_seconds_sum": 2,
        "time_per_output_token_seconds_count": 1,
        "time_per_output_token_seconds_sum": 1.5,
        "request_duration_seconds_count": 1,
        "request_duration_seconds_sum": 6,
        "estimate_ratio_count/first_token": 1,
        "estimate_ratio_sum/first_token": 2,
        "estimate_ratio_count/finish": 1,
        "estimate_ratio_sum/finish": 1,
        "stage_seconds_count/plan": 1,
        "stage_seconds_sum/plan": 1,
        "stage_seconds_count/prefill": 1,
        "stage_seconds_sum/prefill": 0.25,
        "stage_seconds_count/transfer": 1,
        "stage_seconds_sum/transfer": 0.5,
        "kv_transfer_bytes_total": 4096,
        "kv_transfer_bytes_per_second_count": 1,
        "kv_transfer_bytes_per_second_sum": 8192,
    }


def test_a_choice_without_a_plan_or_a_token_has_none_of_their_times() -> None:
    timeline, metrics = ChoiceTimeline(REQUEST, 10.0), empty()
    timeline.failure, timeline.moves, timeline.ended_at = "no node", 2, 11.0
    metrics.record_choice(timeline)
    assert page_of(metrics.all) == {
        "answers_total/failed": 1,
        "tokens_total/prompt": 3,
        "moves_total": 2,
        "request_duration_seconds_count": 1,
        "request_duration_seconds_sum": 1,
    }


def test_kv_that_came_in_no_time_has_no_rate() -> None:
    timeline, metrics = ChoiceTimeline(REQUEST), empty()
    timeline.record_event(D0, StageEvent("transfer", 0.0, 4096), 0.0)
    metrics.record_choice(timeline)
    told = page_of(metrics.all)
    assert told["kv_transfer_bytes_total"] == 4096
    assert "kv_transfer_bytes_per_second_count" not in told


def test_what_is_no_choice_is_counted_apart() -> None:
    metrics = empty()
    metrics.record_answer("/v1/models", 200)
    metrics.record_answer("/v1/models", 200)
    metrics.record_tokenization(0.5)
    metrics.record_pooled(2, 7, 3.0, "pooled")
    metrics.requests_in_flight = 4
    assert page_of(metrics.all) == {
        "requests_total//v1/models/200": 2,
        "stage_seconds_count/tokenize": 1,
        "stage_seconds_sum/tokenize": 0.5,
        "answers_total/pooled": 2,
        "tokens_total/prompt": 7,
        "request_duration_seconds_count": 1,
        "request_duration_seconds_sum": 3,
        "requests_in_flight": 4,
    }
    assert (
        metrics.all.get_sample_value("pdserve_proxy_answers_total", {"finish": "failed"}) == 0
    )


def test_times_are_counted_in_buckets_that_are_as_wide_as_the_times_are_long() -> None:
    metrics = empty()
    metrics.record_tokenization(0.002)
    metrics.record_tokenization(70.0)
    name, value = "pdserve_proxy_stage_seconds_bucket", metrics.all.get_sample_value
    buckets = [
        value(name, {"stage": "tokenize", "le": str(float(most))})
        for most in (0.001, 0.003, 30, 100)
    ]
    assert buckets == [0, 1, 1, 2]


def test_nodes_are_counted_by_their_role() -> None:
    health = cluster(3, 2)
    told = page_of(ProxyMetrics(health.registry, health).all)
    assert (told["nodes/prefill"], told["nodes/decode"]) == (3, 2)


def test_requests_in_line_are_told_from_those_that_are_let_in() -> None:
    crowd = door(requests=2)
    gate = AdmissionGate(crowd.admission)
    crowd.come(tokens=10, choices=2)
    crowd.come(tokens=20)
    gate.admission.refused["busy"] += 3
    for seconds in (0.02, 0.02, 0.3, 1000):
        gate.waits.add(seconds)
    assert page(AdmissionMetrics(gate)) == {
        "admitted_choices": 2,
        "admitted_tokens": 10,
        "queued_requests": 1,
        "queued_tokens": 20,
        "refusals_total/busy": 3,
        "queue_seconds_count": 4,
        "queue_seconds_sum": 1000.34,
    }


@pytest.mark.parametrize(
    ("most", "waits"), [("0.01", 0), ("0.05", 2), ("0.5", 3), ("120.0", 3), ("+Inf", 4)]
)
def test_waits_are_counted_by_the_time_that_none_of_them_exceeded(
    most: str, waits: int
) -> None:
    gate, registry = AdmissionGate(), CollectorRegistry()
    for seconds in (0.02, 0.02, 0.3, 1000):
        gate.waits.add(seconds)
    registry.register(AdmissionMetrics(gate))
    name = "pdserve_proxy_queue_seconds_bucket"
    assert registry.get_sample_value(name, {"le": most}) == waits


def test_connections_are_those_that_are_open() -> None:
    limiter = ConnectionLimiter()
    limiter.connections = dict.fromkeys(cast("list[LimitedConnection]", "ab"))
    limiter.held_bytes = 7
    limiter.refused["full"] += 3
    assert page(ConnectionMetrics(limiter)) == {
        "connections": 2,
        "body_bytes": 7,
        "connections_refused_total/full": 3,
    }


def test_breakers_are_told_by_what_they_guard_and_while_they_are_not_closed() -> None:
    health, now = cluster(), [2.0]
    metrics = FailureMetrics(health, "pdserve_proxy_", lambda: now[0])
    assert page(metrics) == {}
    breaks(health, "d0", 1.5)
    health.record_failure(NodeFailed("d0", "it broke too"), begun=1.0, now=2.0)
    broken = NodeFailed("d1", "no way there", Cause.UNREACHABLE, pair=("p0", "d1"))
    health.record_failure(broken, begun=2.0, now=2.0)
    health.attempts, health.retries[Cause.BROKEN] = 5, 3
    counted = {
        "node_failures_total/d0:80": 2,
        "tries_total": 5,
        "retries_total/broken": 3,
        "breakers_opened_total/node": 1,
        "breakers_opened_total/pair": 1,
    }
    assert page(metrics) == {**counted, "breakers/node/open": 1, "breakers/pair/open": 1}
    now[0] += 2 * health.rules.open_s
    beat(health.registry, "d0", now[0])
    assert page(metrics) == {
        **counted,
        "breakers/node/half_open": 1,
        "breakers/pair/half_open": 1,
    }
