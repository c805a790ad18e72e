"""A proxy without the nodes' key, or with another, is not let in; operators are told why."""

import logging
from typing import Any

import msgspec
import pytest

from discovery.signed_calls import Signing
from proxy.admin.guard import Guard
from tests.fakes.cluster import Cluster
from tests.fakes.http_cluster import ADMIN, HttpCluster, http_cluster
from tests.fakes.http_node import CLUSTER_KEY
from tests.fakes.watched import WatchedRegistry

KEYS = pytest.mark.parametrize(("key", "reason"), [(None, "unsigned"), (b"wrong", "forged")])
HAND = {"X-API-Key": ADMIN}
COMPLETION = {"prompt": "the cat", "max_tokens": 3}


def refusals(proxy: HttpCluster, reason: str) -> list[float]:
    """How often each node has turned somebody away."""
    counters = [one.metrics.refused.labels(reason) for one in proxy.http]
    return [float(one._value.get()) for one in counters]


async def nodes(proxy: HttpCluster) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = msgspec.json.decode((await proxy.get("/status"))[1])["nodes"]
    return told


async def test_with_one_key_on_both_sides_all_calls_are_let_in() -> None:
    async with http_cluster(Cluster(1, 1)) as proxy:
        assert (await proxy.post("/v1/completions", COMPLETION))[0] == 200
        assert (await proxy.post("/v1/embeddings", {"input": "the cat"}))[0] == 200
        assert (await proxy.post("/instances/p0/drain", {}, **HAND))[0] != 401
        assert refusals(proxy, "unsigned") == refusals(proxy, "forged") == [0, 0]


async def test_a_clients_key_is_passed_on_to_no_node() -> None:
    """Nor replaces another there (vllm-ascend#15250)."""
    guard = Guard(("sk-client",), ADMIN)
    key = {"Authorization": "Bearer sk-client"}
    for keys in (key, key | HAND):
        async with http_cluster(Cluster(1, 1), guard=guard) as proxy:
            assert (await proxy.post("/v1/completions", COMPLETION, **keys))[0] == 200
            for node in proxy.http:
                told = " ".join(f"{name}: {value}" for name, value in node.seen.items())
                assert "content-length" in told
                assert not [one for one in ("sk-client", ADMIN) if one in told]


@KEYS
@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/completions", COMPLETION), ("/v1/embeddings", {"input": "the cat"})],
)
async def test_a_refused_proxy_fails_its_client_as_a_gateway_and_asks_no_node_twice(
    key: bytes | None, reason: str, path: str, body: object, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with http_cluster(Cluster(1, 2), key=key) as proxy:
        status, data = await proxy.post(path, body)
        assert (status, b"--cluster-key" in data) == (502, True)
        asked = refusals(proxy, reason)
        assert sum(asked) > 0
        assert max(asked) == 1, "a wrong key is not put right by asking again"
        told = {one["node_id"]: (one["breaker"], one["trouble"]) for one in await nodes(proxy)}
    logged = [one for one in caplog.records if "gets no work for now" in one.getMessage()]
    assert len(logged) == sum(asked)
    for http, times in zip(proxy.http, asked, strict=True):
        breaker, trouble = told[http.node.node_id]
        if times:
            assert breaker == "open"
            assert "is --cluster-key the same there?" in trouble
        else:
            assert (breaker, trouble) == ("closed", None)


@KEYS
async def test_a_node_that_lets_nobody_in_is_not_added_by_hand(
    key: bytes | None, reason: str
) -> None:
    async with http_cluster(Cluster(0, 1), announced=False, key=key) as proxy:
        body = {
            "type": "decode",
            "instance": proxy.cluster.decodes[0].registration.http_address,
        }
        status, data = await proxy.post("/instances/add", body, **HAND)
        assert (status, b"is --cluster-key the same there?" in data) == (400, True)
        assert refusals(proxy, reason) == [1]
        assert not proxy.registry.all()


async def test_one_that_was_added_leaves_when_it_has_another_key_and_is_back_with_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    registry = WatchedRegistry(ttl_s=60)
    async with http_cluster(Cluster(0, 1), announced=False, registry=registry) as proxy:
        body = {
            "type": "decode",
            "instance": proxy.cluster.decodes[0].registration.http_address,
        }
        assert (await proxy.post("/instances/add", body, **HAND))[0] == 200
        proxy.instances.signing = Signing.of(b"another")
        await registry.until(lambda: not registry.all())
        assert "left: it does not let us in" in caplog.text
        proxy.instances.signing = Signing.of(CLUSTER_KEY.encode())
        await registry.until(registry.all)
