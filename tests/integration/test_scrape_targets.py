"""Prometheus asks the proxy which nodes there are, and of which role and model each is."""

from typing import Any

import msgspec
import pytest

from proxy.admin.guard import Guard
from tests.fakes.cluster import Cluster
from tests.fakes.http_cluster import HttpCluster, http_cluster

TARGETS = "/metrics/targets"


async def targets(proxy: HttpCluster) -> list[dict[str, Any]]:
    status, body = await proxy.get(TARGETS)
    assert status == 200
    found: list[dict[str, Any]] = msgspec.json.decode(body)
    return found


async def test_each_node_is_found_where_it_registered_with_its_role_and_model() -> None:
    async with http_cluster(Cluster(1, 2)) as proxy:
        found = await targets(proxy)
        assert sorted(one["labels"]["role"] for one in found) == ["decode", "decode", "prefill"]
        for one in found:
            (address,) = one["targets"]
            node = proxy.registry.at(address)
            assert node is not None
            model = node.registration.model or ""
            assert one["labels"] == {"role": node.role.name.lower(), "model": model}


async def test_a_node_that_is_gone_is_no_target() -> None:
    async with http_cluster(Cluster(1, 1)) as proxy:
        (gone,) = (one for one in proxy.registry.all() if one.role.name == "PREFILL")
        proxy.registry.remove(gone.registration.http_address)
        assert [one["labels"]["role"] for one in await targets(proxy)] == ["decode"]


@pytest.mark.parametrize(("key", "status"), [("Bearer one", 200), ("Bearer two", 401)])
async def test_where_clients_have_keys_prometheus_needs_one(key: str, status: int) -> None:
    async with http_cluster(Cluster(), guard=Guard(("one",), "admin")) as proxy:
        assert (await proxy.get(TARGETS))[0] == 401
        assert (await proxy.get(TARGETS, Authorization=key))[0] == status
