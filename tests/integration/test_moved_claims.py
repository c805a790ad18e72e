"""A request that moves to another decode node counts there, and no longer at the first."""

import asyncio

from decode_node.worker import NO_ROOM_S
from discovery.registration import Role
from kv_transfer.wire import BEAT_S
from proxy.routing.planner import Planner
from tests.fakes.cluster import Cluster
from tests.fakes.model import alone
from tests.integration.test_second_decode import (
    fill,
    request,
    small,
    wait,
)


def claimed(cluster: Cluster) -> dict[str, int]:
    """Requests that the proxy has at each decode node."""
    planner = cluster.pipeline.planner
    assert isinstance(planner, Planner)
    decodes = cluster.registry.nodes(Role.DECODE, now=cluster.now)
    return {one.node_id: planner.state.claims.at(one).requests for one in decodes}


async def test_a_request_counts_at_the_node_that_has_it_now() -> None:
    cluster = Cluster(1, 2, engine=small)
    first, second = [await fill(node) for node in cluster.decodes]
    asked = asyncio.create_task(cluster.ask(request()))
    await wait(cluster, BEAT_S)
    assert claimed(cluster) == {"d0": 1, "d1": 0}
    await wait(cluster, NO_ROOM_S + BEAT_S)
    assert claimed(cluster) == {"d0": 0, "d1": 1}
    await second.aclose()
    await wait(cluster, 1)
    assert await asked == alone(request())
    assert claimed(cluster) == {"d0": 0, "d1": 0}
    await first.aclose()
    cluster.settle()
    assert cluster.leaked_blocks == 0
