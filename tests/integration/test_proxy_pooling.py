"""Vectors through a proxy: from prefill nodes, whatever becomes of one of them."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec
import pytest

from api.generator import PooledEvent
from discovery.node import Node
from discovery.registration import Role
from discovery.registry import Registry
from engine.request import PoolingRequest, RequestId
from proxy.errors import Cause, NodeFailed
from proxy.pooling import PoolingPipeline
from tests.fakes.cluster import Cluster
from tests.fakes.engine import FakeEngine
from tests.fakes.http import Json
from tests.fakes.http_cluster import HttpCluster, http_cluster
from tests.fakes.node import FakeNode, Ill
from tests.fakes.text import byte_level

INPUTS = [[1, number] for number in range(100)]
WANTED = [[2.0, 1.0 + number] for number in range(100)]


async def ask(proxy: HttpCluster, given: object = INPUTS, **fields: object) -> tuple[int, Json]:
    status, body = await proxy.post("/v1/embeddings", {"input": given, **fields})
    return status, msgspec.json.decode(body)


def vectors(body: Json) -> list[list[float]]:
    return [one["embedding"] for one in body["data"]]


async def test_prefill_nodes_share_the_work_and_decode_nodes_have_none() -> None:
    cluster = Cluster(2, 2)
    async with http_cluster(cluster) as proxy:
        status, body = await ask(proxy)
        assert (status, vectors(body)) == (200, WANTED)
        assert body["usage"]["prompt_tokens"] == 200
        assert sorted(node.legs for node in cluster.prefills) == [36, 64]
        assert [node.legs for node in cluster.decodes] == [0, 0]
        assert await proxy.settled() == 0


@pytest.mark.parametrize("x", [0, 1])
async def test_one_kind_of_node_is_enough(x: int) -> None:
    async with http_cluster(Cluster(x, 1 - x)) as proxy:
        status, body = await ask(proxy, "the cat")
        tokens = byte_level().encode("the cat")
        assert (status, vectors(body)) == (200, [[len(tokens), sum(tokens)]])
        assert await proxy.settled() == 0


@pytest.mark.parametrize("ill", [Ill.KILL, Ill.CUT])
@pytest.mark.parametrize("tick", [1, 2, 5])
async def test_a_node_that_dies_is_answered_for_by_another(tick: int, ill: Ill) -> None:
    cluster = Cluster(2, 1)
    cluster.prefills[0].script[tick] = ill
    async with http_cluster(cluster) as proxy:
        status, body = await ask(proxy)
        assert (status, vectors(body)) == (200, WANTED)
        assert proxy.health.failures
        assert not cluster.decodes[0].legs
        assert await proxy.settled() == 0


async def ask_as_it_stops(proxy: HttpCluster, given: object) -> tuple[int, Json]:
    """The first prefill node says so as soon as it was asked."""
    node = proxy.cluster.prefills[0]
    asking = asyncio.create_task(ask(proxy, given))
    while not node.legs:  # noqa: ASYNC110
        await asyncio.sleep(0)
    node.hand_over()
    return await asking


async def test_a_node_that_stops_is_answered_for_by_another_and_nobody_is_blamed() -> None:
    async with http_cluster(Cluster(2, 0, lambda: FakeEngine(chunk=4))) as proxy:
        status, body = await ask_as_it_stops(proxy, [[1] * 180] * 8)
        assert (status, vectors(body)) == (200, [[180, 180]] * 8)
        assert proxy.health.retries == {Cause.LEAVING: 1}
        assert proxy.health.attempts == 2
        assert not proxy.health.failures
        assert not proxy.health.has_failures
        assert await proxy.settled() == 0


async def test_where_the_last_node_stops_the_client_is_told_to_come_back() -> None:
    async with http_cluster(Cluster(1, 0, lambda: FakeEngine(chunk=4)), tries=1) as proxy:
        status, body = await ask_as_it_stops(proxy, [[1] * 180])
        assert (status, body["error"]["code"]) == (503, None)


async def test_the_last_node_to_die_is_told() -> None:
    cluster = Cluster(1, 0)
    cluster.prefills[0].script[2] = Ill.KILL
    async with http_cluster(cluster) as proxy:
        status, body = await ask(proxy)
        assert status == 502
        assert "connection" in body["error"]["message"]


async def test_without_nodes_the_client_is_told_to_come_back() -> None:
    async with http_cluster(Cluster(0, 0)) as proxy:
        status, body = await ask(proxy)
        assert (status, body["error"]["message"]) == (503, "no prefill node is available")


async def test_what_the_node_refuses_is_refused_and_nobody_else_is_asked() -> None:
    cluster = Cluster(2, 1, lambda: FakeEngine(blocks=4))
    async with http_cluster(cluster) as proxy:
        status, body = await ask(proxy, [[1] * 40])
        assert status == 400
        assert "40" in body["error"]["message"]
        assert sum(node.legs for node in cluster.prefills) == 1
        assert not proxy.health.failures
        assert await proxy.settled() == 0


class Silent:
    """A client that never hears of its first node, which the registry then forgets."""

    def __init__(self, registry: Registry) -> None:
        self.registry, self.asked, self.cut = registry, list[str](), 0

    async def pool(
        self, node: Node, requests: Sequence[PoolingRequest]
    ) -> Sequence[PooledEvent]:
        self.asked.append(node.node_id)
        if len(self.asked) > 1:
            return [PooledEvent(b"1234", 1) for _ in requests]
        self.registry.remove(node.address)
        try:
            never: asyncio.Future[Sequence[PooledEvent]] = asyncio.Future()
            return await never
        finally:
            self.cut += 1


async def test_a_node_that_is_forgotten_while_it_is_asked_has_failed() -> None:
    cluster = Cluster(2, 0)
    client = Silent(cluster.registry)
    embedder = PoolingPipeline(cluster.pipeline, client, look_after_s=0.01)
    said = await embedder.embed([PoolingRequest(RequestId("p"), (1, 2))])
    assert said == [PooledEvent(b"1234", 1)]
    assert (client.asked, client.cut) == (["p0", "p1"], 1)
    assert cluster.health.failures == {"p0:80": 1}
    assert cluster.health.retries == {Cause.BROKEN: 1}


async def test_a_client_that_leaves_frees_all() -> None:
    cluster = Cluster(1, 0, lambda: FakeEngine(chunk=4))
    async with http_cluster(cluster) as proxy:
        asking = asyncio.create_task(ask(proxy, [[1] * 180] * 50))
        while not cluster.prefills[0].legs:  # noqa: ASYNC110
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert await proxy.settled() == 0
        assert proxy.door.metrics.requests_in_flight == 0
        assert cluster.prefills[0].legs < 50


async def test_answers_are_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with http_cluster(Cluster(1, 0)) as proxy:
        await ask(proxy, [[1, 2], [3]])
        _, metrics = await proxy.get("/metrics")
    assert b'pdserve_proxy_answers_total{finish="pooled"} 2.0' in metrics
    assert b'pdserve_proxy_tokens_total{kind="prompt"} 3.0' in metrics
    assert b'endpoint="/v1/embeddings",status="200"' in metrics
    assert "endpoint=/v1/embeddings model=tiny prompts=2 prompt_tokens=3" in caplog.text


def fails(proxy: HttpCluster, node: FakeNode) -> None:
    """A call to it broke off just now."""
    failure, now = NodeFailed(node.node_id, "connection lost"), time.monotonic()
    proxy.health.record_failure(failure, begun=now, now=now)


async def test_a_node_that_failed_is_left_alone_while_another_is_well() -> None:
    cluster = Cluster(1, 1)
    async with http_cluster(cluster) as proxy:
        fails(proxy, cluster.prefills[0])
        assert (await ask(proxy, [[1]]))[0] == 200
        assert (cluster.prefills[0].legs, cluster.decodes[0].legs) == (0, 1)
        fails(proxy, cluster.decodes[0])
        assert (await ask(proxy, [[1]]))[0] == 200
        assert cluster.prefills[0].legs == 1


@dataclass
class Hanging:
    """Answers nobody; knows who was asked."""

    most: int
    asked: list[str] = field(default_factory=list)
    all_asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def pool(
        self, node: Node, requests: Sequence[PoolingRequest]
    ) -> Sequence[PooledEvent]:
        self.asked.append(node.node_id)
        if len(self.asked) == self.most:
            self.all_asked.set()
        await asyncio.Event().wait()
        return []


async def test_a_node_on_trial_gets_one_call_at_a_time() -> None:
    cluster = Cluster(2, 0)
    began = cluster.now
    cluster.health.record_failure(NodeFailed("p0", "ill"), begun=began, now=began)
    cluster.now += 2
    cluster.beat()
    client = Hanging(40)
    pooling = PoolingPipeline(cluster.pipeline, client)
    ask = [PoolingRequest(RequestId("r"), (1,))]
    tasks = [asyncio.create_task(pooling.embed(ask)) for _ in range(40)]
    await client.all_asked.wait()
    assert client.asked.count("p0") <= 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    nodes = cluster.registry.nodes(Role.PREFILL, now=cluster.now)
    assert len(cluster.health.healthy(nodes, now=cluster.now)) == len(nodes)


async def test_right_after_its_start_a_proxy_waits_for_its_nodes() -> None:
    cluster, client = Cluster(1, 0), Hanging(1)
    cluster.registry = registry = Registry(ttl_s=5)
    started = replace(
        cluster.pipeline, registry=registry, recovery_wait_s=30, startup_until=cluster.now + 3
    )
    ask = [PoolingRequest(RequestId("r"), (1,))]
    pooled = asyncio.create_task(PoolingPipeline(started, client).embed(ask))
    asked = asyncio.create_task(client.all_asked.wait())
    await asyncio.sleep(0)
    cluster.beat()
    await asyncio.wait({pooled, asked}, return_when=asyncio.FIRST_COMPLETED)
    assert client.asked == ["p0"]
    pooled.cancel()
    await asyncio.gather(pooled, return_exceptions=True)
