"""A node has another role, and goes there and back while streams run."""

import asyncio

import pytest

from discovery.registration import Role
from tests.fakes.cluster import Cluster
from tests.fakes.http_cluster import http_cluster
from tests.fakes.watched import WatchedRegistry
from tests.integration.test_operating_nodes import known, small, tell, until_turned
from tests.integration.test_proxy import COMPLETIONS, body, expected, frames, tokens_of

TURNS, STREAMS = 6, 8
PATIENCE_S = 60


@pytest.mark.parametrize("drain_timeout_s", [0.0, 60.0])
async def test_a_node_that_changes_its_role_under_load_costs_no_token(
    drain_timeout_s: float,
) -> None:
    """P to D to P and so on, while streams run; at once, they are handed over."""
    registry = WatchedRegistry(ttl_s=60)
    cluster = Cluster(2, 1, engine=small)
    async with http_cluster(
        cluster, registry=registry, drain_timeout_s=drain_timeout_s, recovery_wait_s=5
    ) as proxy:
        over, more = asyncio.Event(), asyncio.Semaphore(0)

        async def ask() -> None:
            while not over.is_set():
                status, data = await proxy.post(COMPLETIONS, body(stream=True))
                assert (status, tokens_of(frames(data))) == (200, expected())
                more.release()

        async with asyncio.TaskGroup() as tasks:
            for _ in range(STREAMS):
                tasks.create_task(ask())
            for turn in range(TURNS):
                role = Role.PREFILL if turn % 2 else Role.DECODE
                code, said = await tell(proxy, "p1", "role", role=role.name.lower())
                assert code in (200, 202), said
                await until_turned(proxy, "p1", role)
                for _ in range(STREAMS):
                    await asyncio.wait_for(more.acquire(), PATIENCE_S)
            over.set()
        assert known(proxy, "p1").turn == TURNS
        assert await proxy.settled() == 0


async def test_in_its_new_role_it_is_asked_for_the_other_kind_of_leg() -> None:
    registry = WatchedRegistry(ttl_s=60)
    async with http_cluster(Cluster(2, 1), registry=registry) as proxy:
        await tell(proxy, "p1", "role", role="decode")
        await until_turned(proxy, "p1", Role.DECODE)
        before = proxy.cluster.nodes["p1"].legs
        for _ in range(2):
            await proxy.post(COMPLETIONS, body())
        assert proxy.cluster.nodes["p1"].legs == before + 1  # of two decode nodes
        assert proxy.http[1].niceness == [5]
