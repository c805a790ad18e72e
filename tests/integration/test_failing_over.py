"""Who is tried next, and when; what the client is told where nothing works."""

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from api.generator import Event, Leg, StageEvent
from discovery.node import Node
from discovery.registration import Role
from engine.request import Request, RequestId, Sampling
from proxy.attempt.node_choice import FEW_NODES
from proxy.errors import Cause, NodeFailed, ProxyExhausted
from proxy.health.breaker import BreakerState
from proxy.routing.plan import Plan
from tests.fakes.cluster import Cluster, next_tokens, tokens_of
from tests.fakes.engine import FakeEngine
from tests.fakes.http_cluster import HttpCluster, http_cluster
from tests.fakes.model import alone
from tests.fakes.raw_http import CUT, RawServer, answer, raw_server
from tests.fakes.sick import Sick

PROMPT = tuple(range(30))
COMPLETIONS = "/v1/completions"
BODY = {"prompt": "the cat sat", "max_tokens": 6, "seed": 3}
UNREACHABLE, TOLD, BUSY = Cause.UNREACHABLE, Cause.NODE_ERROR, Cause.BUSY


def request(name: str = "r") -> Request:
    return Request(RequestId(name), PROMPT, Sampling(8, seed=7))


def failing(name: str, cause: Cause = UNREACHABLE) -> NodeFailed:
    return NodeFailed(name, "it is ill", cause)


@pytest.mark.parametrize("name", ["p0", "d0"])
@pytest.mark.parametrize("cause", [UNREACHABLE, TOLD, BUSY, Cause.SILENT, Cause.BROKEN])
async def test_a_first_failure_is_made_good_at_once_where_another_node_is_well(
    name: str, cause: Cause
) -> None:
    cluster = Cluster(2, 2)
    sick = Sick(cluster, {name: failing(name, cause)})
    pipeline, requests = sick.pipeline(), 0
    while not sick.asked[name]:
        assert await tokens_of(pipeline.stream(request())) == alone(request())
        requests += 1
    assert sick.asked[name] == 1
    assert sick.waits == []
    assert cluster.health.attempts == requests + (name == "p0")
    assert cluster.health.retries == ({cause: 1} if name == "p0" else {})  # the ticket moves


class Hung(Sick):
    """A node's heartbeats end with its answers, and it is forgotten before its call fails."""

    async def generate(self, node: Node, request: Request, leg: Leg) -> AsyncGenerator[Event]:
        self.cluster.registry.remove(node.address)
        async for event in Sick.generate(self, node, request, leg):
            yield event


async def test_a_call_that_fails_after_its_node_is_forgotten_is_counted() -> None:
    """It is no retry, as there is no other node."""
    cluster = Cluster(0, 1)
    node = cluster.registry.find("d0")
    assert node
    sick = Hung(cluster, {"d0": failing("d0", Cause.SILENT)})
    with pytest.raises(NodeFailed, match="it is ill"):
        await tokens_of(sick.pipeline(recovery_wait_s=5).stream(request()))
    assert sick.asked["d0"] == 1
    assert cluster.health.failures == {node.address: 1}
    assert not cluster.health.retries
    assert not cluster.health.has_failures  # a breaker would be of no use


async def test_a_dead_node_is_not_asked_again_by_the_next_request() -> None:
    cluster = Cluster(2, 2)
    sick = Sick(cluster, {"d0": failing("d0")})
    pipeline = sick.pipeline()
    for number in range(4):
        asked = request(str(number))
        assert await tokens_of(pipeline.stream(asked)) == alone(asked)
    assert sick.asked["d0"] == 1


async def test_where_the_last_healthy_prefill_node_fails_none_that_is_ill_is_asked() -> None:
    cluster = Cluster(2, 1)
    cluster.health.record_failure(failing("p0"), begun=cluster.now, now=cluster.now)
    sick = Sick(cluster, {"p1": failing("p1")})
    assert await tokens_of(sick.pipeline().stream(request())) == alone(request())
    assert (sick.asked["p0"], sick.asked["p1"]) == (0, 1)


async def test_tries_are_further_and_further_apart_where_nobody_else_is_there() -> None:
    cluster = Cluster(0, 1)
    sick = Sick(cluster, {"d0": failing("d0", TOLD)})
    with pytest.raises(NodeFailed, match="d0: it is ill"):
        await tokens_of(sick.pipeline().stream(request()))
    assert sick.asked["d0"] == 4  # as many as there may be
    first, second, third = sick.waits
    assert 0.025 <= first <= 0.05 <= second <= 0.1 <= third <= 0.2


async def test_a_node_that_this_request_found_dead_is_asked_when_it_was_heard_of() -> None:
    cluster = Cluster(0, 1)
    sick = Sick(cluster, {"d0": failing("d0")}, beats=True)
    with pytest.raises(NodeFailed):
        await tokens_of(sick.pipeline(recovery_wait_s=30).stream(request()))
    assert sick.asked["d0"] == 4
    assert cluster.now >= 1 + 2 + 4  # its breaker's times
    assert cluster.now <= 10


async def test_a_node_that_comes_back_answers_who_waited_for_it() -> None:
    cluster = Cluster(0, 1)
    sick = Sick(cluster, {"d0": failing("d0")}, beats=True)

    async def recovers(seconds: float) -> None:
        await Sick.sleep(sick, seconds)
        if cluster.now > 2:
            sick.ills.clear()

    pipeline = sick.pipeline(recovery_wait_s=30, sleep=recovers)
    assert await tokens_of(pipeline.stream(request())) == alone(request())
    node = cluster.registry.find("d0")
    assert node
    assert cluster.health.state(node, now=cluster.now) is BreakerState.CLOSED


async def test_one_bad_request_does_not_take_nodes_from_all_others() -> None:
    """Each node fails at it, and says so: none is left alone for that."""
    cluster = Cluster(2, 2)
    ills = {name: failing(name, TOLD) for name in cluster.nodes}
    with pytest.raises(NodeFailed):
        await tokens_of(Sick(cluster, ills).pipeline().stream(request("poison")))
    assert cluster.suspects == []


async def test_for_want_of_sockets_no_node_is_blamed() -> None:
    cluster = Cluster(1, 1)
    sick = Sick(cluster, {"p0": ProxyExhausted("the proxy cannot open a connection")})
    with pytest.raises(ProxyExhausted) as failed:
        await tokens_of(sick.pipeline().stream(request()))
    assert (failed.value.status, failed.value.retry_after_s) == (503, 2)
    assert sick.asked == {"p0": 4}
    assert len(sick.waits) == 3
    assert cluster.suspects == []
    assert not cluster.health.failures
    assert cluster.health.retries == {Cause.EXHAUSTED: 3}


async def test_a_pair_whose_link_is_cut_is_avoided_while_both_go_on_with_others() -> None:
    cluster = Cluster(2, 2, engine=lambda: FakeEngine(chunk=4))
    d0 = cluster.decodes[0]
    d0.sink.sources = {at: one for at, one in cluster.sources.items() if at[0] != "p0"}
    for number in range(12):
        asked = Request(RequestId(str(number)), (number, *PROMPT), Sampling(8, seed=7))
        assert await cluster.ask(asked) == alone(asked)
    lost = [pair for pair, _ in cluster.health.unhealthy_pairs(now=cluster.now)]
    assert lost == [("p0", "d0")]
    assert d0.loop.load_failures == {"unreachable": 1}  # and never again
    assert cluster.suspects == []
    assert all(node.legs > 2 for node in cluster.nodes.values())
    cluster.expire()
    assert cluster.leaked_blocks == 0


async def test_a_pair_that_is_cut_is_avoided_among_many_nodes_too() -> None:
    """There nobody looks at each of them; with one partner left, that one has all of it."""
    cluster = Cluster(2, FEW_NODES + 2)
    p0, lost = cluster.registry.find("p0"), StageEvent("lost", 0.0)
    for decode in cluster.registry.nodes(Role.DECODE, now=0.0):
        cluster.health.record_event(decode, lost, Plan(p0, decode), begun=0.0, now=0.0)
    for number in range(2 * FEW_NODES):
        asked = request(str(number))
        assert await cluster.ask(asked) == alone(asked)
    assert [node.legs for node in cluster.prefills] == [0, 2 * FEW_NODES]


async def test_where_the_only_pair_is_cut_decode_runs_prompts_and_waits_for_no_kv() -> None:
    cluster = Cluster(1, 1, engine=lambda: FakeEngine(chunk=4))
    d0 = cluster.decodes[0]
    d0.sink.sources = {}
    for number in range(3):
        assert await cluster.ask(request(str(number))) == alone(request())
    assert (cluster.prefills[0].legs, d0.legs) == (1, 3)
    assert sum(d0.loop.load_failures.values()) == 1


async def test_a_node_that_stops_is_not_held_to_have_failed() -> None:
    cluster = Cluster(1, 2)
    sick = Sick(cluster, {"d0": failing("d0", Cause.LEAVING)})
    assert await tokens_of(sick.pipeline().stream(request())) == alone(request())
    assert cluster.suspects == []
    assert not cluster.health.failures


@pytest.mark.parametrize("tokens", [0, 1, 3])
async def test_a_client_that_leaves_opens_no_breaker(tokens: int) -> None:
    cluster = Cluster(1, 1, engine=lambda: FakeEngine(chunk=4))
    for _ in range(20):
        stream = cluster.pipeline.stream(request())
        await (next_tokens(stream, tokens) if tokens else anext(stream))
        await stream.aclose()
    assert cluster.suspects == []
    assert not cluster.health.failures
    assert not list(cluster.health.unhealthy_pairs(now=cluster.now))
    cluster.settle()
    assert cluster.leaked_blocks == 0


async def told(http: HttpCluster, **more: object) -> tuple[int, Any, dict[str, str]]:
    """The status, the body and the headers."""
    async with http.session.post(
        f"http://{http.url}{COMPLETIONS}", json={**BODY, **more}
    ) as said:
        return said.status, msgspec.json.decode(await said.read()), dict(said.headers)


def stands_in(proxy: HttpCluster, ill: RawServer) -> None:
    """From now on the only decode node is this one."""
    node = proxy.cluster.decodes[0].registration
    proxy.registry.remove(node.http_address)
    there = msgspec.structs.replace(node, http_address=ill.address)
    proxy.registry.apply(there, now=proxy.door.pipeline.clock())


FULL = answer(503, {"error": {"message": "the queue is full"}})
MANY = answer(429, {"error": {"message": "too many of you"}})
SAD = answer(500, {"error": {"message": "out of memory, sadly"}})


@pytest.mark.parametrize(
    ("says", "status", "words", "retry_after"),
    [
        (SAD, 502, "out of memory, sadly", None),
        (FULL, 503, "the queue is full", "2"),
        (MANY, 503, "too many of you", "2"),
    ],
)
async def test_where_all_tries_fail_the_client_hears_the_node_s_own_words(
    says: bytes, status: int, words: str, retry_after: str | None
) -> None:
    async with http_cluster(Cluster(0, 1), tries=2) as proxy, raw_server([says], [says]) as ill:
        stands_in(proxy, ill)
        got, body, headers = await told(proxy)
    assert (got, headers.get("Retry-After")) == (status, retry_after)
    assert words in body["error"]["message"]
    assert body["error"]["type"] == "server_error"


async def test_a_node_s_4xx_is_the_client_s_at_once_and_nobody_s_failure() -> None:
    error = {"message": "top_k is too large", "param": "top_k"}
    says = [answer(400, {"error": error})]
    async with http_cluster(Cluster(0, 1)) as proxy, raw_server(says) as ill:
        stands_in(proxy, ill)
        got, body, _ = await told(proxy)
    assert (got, body["error"]["message"], body["error"]["param"]) == (400, *error.values())
    assert body["error"]["type"] == "invalid_request_error"
    assert not proxy.health.failures


class Silent:
    """A NodeClient whose nodes say nothing in time."""

    async def generate(self, node: Node, request: Request, leg: Leg) -> AsyncGenerator[Event]:
        raise NodeFailed(node.node_id, "silent for too long", Cause.SILENT)
        yield


async def test_where_all_nodes_stay_silent_it_is_504() -> None:
    cluster = Cluster(1, 1)
    pipeline = Sick(cluster).pipeline(client=Silent())
    with pytest.raises(NodeFailed) as failed:
        await tokens_of(pipeline.stream(request()))
    assert failed.value.status == 504


async def test_a_stream_that_cannot_go_on_ends_with_openai_s_error_and_done() -> None:
    """Never with a bare object, or an empty answer (production-stack, vllm-ascend#13140)."""
    async with http_cluster(Cluster(0, 1), tries=1) as proxy:
        first = {"choices": [{"token_ids": [5]}]}
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
        frame = b"data: " + msgspec.json.encode(first) + b"\n\n"
        async with raw_server([head + frame, CUT]) as ill:
            stands_in(proxy, ill)
            status, data = await proxy.post(COMPLETIONS, {**BODY, "stream": True})
    *_, error, done, rest = data.split(b"\n\n")
    assert (status, done, rest) == (200, b"data: [DONE]", b"")
    said = msgspec.json.decode(error.removeprefix(b"data: "))["error"]
    assert set(said) == {"message", "type", "param", "code"}
    assert said["type"] == "server_error"
    assert "d0" in said["message"]
