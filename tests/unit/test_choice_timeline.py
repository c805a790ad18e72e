"""A request's one line tells who did it, how often it was tried and how it ended."""

import logging
import time
from collections.abc import AsyncGenerator, Sequence
from random import Random

import pytest

from api.generator import (
    Event,
    Leg,
    PooledEvent,
    PromptEvent,
    StageEvent,
    TicketEvent,
    TokenEvent,
)
from discovery.node import Node
from discovery.registration import Registration, Role
from discovery.registry import Registry
from engine.request import FinishReason, PoolingRequest, Request, RequestId
from kv_transfer.ticket import KvTicket
from proxy.errors import NodeFailed
from proxy.health.health import Health
from proxy.observing.metrics import ProxyMetrics
from proxy.observing.observed_pipeline import ObservedPipeline
from proxy.pipeline import Pipeline
from proxy.pooling import PoolingPipeline
from proxy.routing.building import build_planner
from proxy.timeline.choice import MAX_EVENTS, ChoiceTimeline
from proxy.timeline.events import RetryDecided, TicketReceived

REQUEST = Request(RequestId("r"), (1, 2, 3))
P0 = Node(Registration(Role.PREFILL, "p:1", "", "p0"), heard_at=0)
D0 = Node(Registration(Role.DECODE, "d:1", "", "d0"), heard_at=0)
D1 = Node(Registration(Role.DECODE, "d:2", "", "d1"), heard_at=0)


def test_the_whole_line() -> None:
    timeline = ChoiceTimeline(REQUEST, 10.0)
    timeline.record_plan(P0, D0, 10.0)
    timeline.record_event(P0, PromptEvent(2, fetched_tokens=1), 10.1)
    timeline.record_event(P0, StageEvent("prefill", 0.25), 10.1)
    timeline.record_tokens(TokenEvent((7,)), 10.5)
    timeline.record_event(D0, PromptEvent(2), 10.5)
    timeline.record_event(D0, StageEvent("prefill", 0.25), 10.6)
    timeline.record_tokens(TokenEvent((8, 9), FinishReason.STOP), 10.9)
    timeline.output_tokens, timeline.ended_at = 3, 11.0
    assert timeline.log_line("m", "/v1/completions") == (
        "request_id=r endpoint=/v1/completions model=m prompt_tokens=3 cached_tokens=2 "
        "fetched_tokens=1 "
        "output_tokens=3 finish=stop nodes=p:1->d:1 tries=1 first_token_s=0.5000 "
        "total_s=1.0000 prefill_s=0.5000"
    )


def test_a_try_that_decode_does_alone_comes_after_one_for_two() -> None:
    timeline = ChoiceTimeline(REQUEST)
    timeline.record_plan(P0, D0, 0.0)
    timeline.record_plan(None, D0, 0.0)
    assert "nodes=d:1 tries=2 first_token_s=- " in timeline.log_line("m")


def test_a_line_says_whom_the_last_try_went_on_without() -> None:
    timeline = ChoiceTimeline(REQUEST)
    timeline.record_plan(P0, D0, 0.0)
    timeline.record_retry(NodeFailed("p0", "refused:\nno", retryable=True), 0.0)
    timeline.record_plan(P0, D1, 0.0)
    timeline.record_retry(NodeFailed("d1", "silent", retryable=True), 0.0)
    assert timeline.log_line("m").endswith(" retry_node=d:2 retry_reason='d1: silent'")
    timeline.failure = "nobody is left"
    assert "retry_" not in timeline.log_line("m")


def test_a_second_decode_node_for_the_same_ticket_is_a_move_and_no_try() -> None:
    timeline, ticket = ChoiceTimeline(REQUEST), KvTicket("t", "p0", "h", 1, None)
    timeline.record_plan(P0, D0, 0.0)
    for node in (D0, D1):
        timeline.record_call(node, Leg(ticket=ticket), 0.0)
    assert (timeline.tries, timeline.moves, timeline.decode) == (1, 1, D1)
    assert "nodes=p:1->d:2 tries=1" in timeline.log_line("m")


def test_a_ticket_that_comes_again_with_the_token_is_told_once_in_each_try() -> None:
    timeline, ticket = ChoiceTimeline(REQUEST), TicketEvent(KvTicket("t", "p0", "h", 1, None))
    for _ in range(2):
        timeline.record_plan(P0, D0, 0.0)
        for _ in range(2):
            timeline.record_event(P0, ticket, 0.0)
    assert sum(isinstance(mark, TicketReceived) for mark in timeline.events) == 2


def test_endings() -> None:
    timeline = ChoiceTimeline(REQUEST)
    assert timeline.ending == "closed"
    timeline.record_tokens(TokenEvent((1,), FinishReason.LENGTH), 0)
    assert timeline.ending == "length"
    timeline.failure = "no\nnode"
    assert timeline.ending == "failed"
    assert r"reason='no\nnode'" in timeline.log_line("m")


def test_a_request_that_fails_forever_fills_no_memory() -> None:
    timeline = ChoiceTimeline(REQUEST)
    for _ in range(10 * MAX_EVENTS):
        timeline.record_retry(NodeFailed("d0", "x" * 100_000, retryable=True), 0.0)
    assert len(timeline.events) == MAX_EVENTS
    assert timeline.dropped_events == 9 * MAX_EVENTS
    assert {len(mark.reason) for mark in timeline.events if isinstance(mark, RetryDecided)} == {
        400
    }


class Mistaken:
    """A NodeClient with a fault in it."""

    async def generate(self, node: Node, request: Request, leg: Leg) -> AsyncGenerator[Event]:
        yield TokenEvent((1,))
        raise ZeroDivisionError(node, request, leg)

    async def pool(
        self, node: Node, requests: Sequence[PoolingRequest]
    ) -> Sequence[PooledEvent]:
        raise ZeroDivisionError(node, requests)


async def test_a_mistake_of_ours_is_no_client_that_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    registry = Registry()
    registry.apply(D0.registration, now=time.monotonic())
    health = Health(registry)
    metrics = ProxyMetrics(registry, health)
    client = Mistaken()
    pipeline = Pipeline(
        registry,
        build_planner("round_robin", "round_robin", "never", Random(0)),
        client,
        health,
    )
    door = ObservedPipeline(pipeline, metrics, "m", PoolingPipeline(pipeline, client))
    with pytest.raises(ZeroDivisionError):
        _ = [event async for event in door.stream(REQUEST)]
    assert b'answers_total{finish="failed"} 1.0' in metrics.render()
    with pytest.raises(ZeroDivisionError):
        await door.embed([PoolingRequest(RequestId("p"), (1, 2))] * 3)
    assert b'answers_total{finish="failed"} 4.0' in metrics.render()
    assert metrics.requests_in_flight == 0
    assert "finish=failed" in caplog.text


def test_an_estimate_is_compared_with_what_came_of_it() -> None:
    timeline = ChoiceTimeline(REQUEST, 1.0)
    timeline.record_plan(P0, D0, 2.0, (0.5, 4.0))
    timeline.record_tokens(TokenEvent((1,)), 3.0)
    assert not list(timeline.prediction_ratios)  # no end so far
    timeline.record_tokens(TokenEvent((2,), FinishReason.LENGTH), 4.0)
    assert list(timeline.prediction_ratios) == [("first_token", 2.0), ("finish", 0.5)]
    timeline.record_plan(P0, D0, 5.0, (1.0, 1.0))
    assert not list(timeline.prediction_ratios)  # another try
