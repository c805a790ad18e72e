"""A request's one line tells who did it, how often it was tried and how it ended."""

import logging
import time
from collections.abc import AsyncGenerator, Sequence

import pytest

from api.generator import Event, Leg, PooledEvent, PromptEvent, StageEvent, TokenEvent
from discovery.registration import Registration, Role
from discovery.registry import Node, Registry
from engine.request import FinishReason, PoolingRequest, Request, RequestId
from proxy.health.health import Health
from proxy.observing.metrics import ProxyMetrics
from proxy.observing.observed import Observed
from proxy.observing.story import NotedPolicy, Story
from proxy.pipeline import Pipeline
from proxy.pooling import PoolingPipeline
from proxy.routing.policies import RoundRobin

REQUEST = Request(RequestId("r"), (1, 2, 3))
P0 = Node(Registration(Role.PREFILL, "p:1", "", "p0"), heard_at=0)
D0 = Node(Registration(Role.DECODE, "d:1", "", "d0"), heard_at=0)


def choose(story: Story, *nodes: Node) -> None:
    policy, partner = NotedPolicy(RoundRobin(), story), None
    for node in nodes:
        partner = policy.choose([node], REQUEST, partner)


def test_the_whole_line() -> None:
    story = Story(REQUEST, "/v1/completions")
    choose(story, D0, P0)
    story.hear(PromptEvent(2), 0.1)
    story.hear(StageEvent("prefill", 0.25), 0.1)
    story.hear(TokenEvent((7,)), 0.5)
    story.hear(StageEvent("prefill", 0.25), 0.6)
    story.hear(TokenEvent((8, 9), FinishReason.STOP), 0.9)
    story.duration_s = 1.0
    assert story.line("m") == (
        "request_id=r endpoint=/v1/completions model=m prompt_tokens=3 cached_tokens=2 "
        "fetched_tokens=0 "
        "output_tokens=3 finish=stop nodes=p:1->d:1 tries=1 first_token_s=0.5000 "
        "total_s=1.0000 prefill_s=0.5000"
    )


def test_a_try_that_decode_does_alone_comes_after_one_for_two() -> None:
    story = Story(REQUEST, "-")
    choose(story, D0, P0)
    choose(story, D0)
    assert "nodes=d:1 tries=2 first_token_s=- " in story.line("m")


def test_endings() -> None:
    story = Story(REQUEST, "-")
    assert story.ending == "closed"
    story.hear(TokenEvent((1,), FinishReason.LENGTH), 0)
    assert story.ending == "length"
    story.failure = "no\nnode"
    assert story.ending == "failed"
    assert r"reason='no\nnode'" in story.line("m")


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
    pipeline = Pipeline(registry, RoundRobin(), client, health)
    door = Observed(pipeline, metrics, "m", PoolingPipeline(pipeline, client))
    with pytest.raises(ZeroDivisionError):
        _ = [event async for event in door.stream(REQUEST)]
    assert b'answers_total{finish="failed"} 1.0' in metrics.render()
    with pytest.raises(ZeroDivisionError):
        await door.embed([PoolingRequest(RequestId("p"), (1, 2))] * 3)
    assert b'answers_total{finish="failed"} 4.0' in metrics.render()
    assert metrics.requests_in_flight == 0
    assert "finish=failed" in caplog.text
