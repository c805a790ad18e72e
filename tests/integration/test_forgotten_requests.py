"""What a proxy holds of a request is free when it is over, however it ends: that may be large,
and how many objects there are, not how large they are, decides when garbage is collected.
"""

import asyncio
import gc
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from discovery.registration import Registration, Role
from engine.request import PoolingRequest, Request
from proxy.nodes.calling import NodeRequest
from tests.fakes.cluster import Cluster
from tests.fakes.http_cluster import HttpCluster, http_cluster
from tests.fakes.raw_http import (
    CUT,
    END,
    SSE,
    RawServer,
    Step,
    answer,
    chunk,
    events,
    raw_server,
)

BODY = {"prompt": "the cat sat", "max_tokens": 2, "seed": 3}
FIRST, LAST = (
    {"choices": [{"token_ids": [7]}]},
    {"choices": [{"token_ids": [8], "finish_reason": "length"}]},
)
GOOD: list[Step] = [SSE, *events(FIRST, LAST), chunk(b"data: [DONE]\n\n"), END]
BROKEN: list[Step] = [SSE, *events(FIRST), CUT]
ILL, REFUSED = (answer(status, {"error": {"message": "no"}}) for status in (500, 400))
TRIES, CHOICES, TURNS = 2, 3, 100
HELD = {Request, PoolingRequest, NodeRequest}


def stands_in(proxy: HttpCluster, node: RawServer, *, ours: bool) -> None:
    """The only node is this one; if it is not `ours`, it is vLLM's."""
    known = proxy.cluster.decodes[0].registration
    proxy.registry.remove(known.http_address)
    there = msgspec.structs.replace(known, http_address=node.address)
    foreign = Registration(Role.DECODE, node.address, "")
    proxy.registry.apply(there if ours else foreign, now=proxy.door.pipeline.clock())


def held() -> list[object]:
    return [one for one in gc.get_objects() if type(one) in HELD]


async def left(others: int) -> int:
    """How many more there are, once the proxy is through with the connection."""
    for _ in range(TURNS):
        if len(held()) == others:
            break
        await asyncio.sleep(0)
    return len(held()) - others


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("more", [{}, {"stream": True}, {"n": CHOICES}, {"timeout": 60}])
@pytest.mark.parametrize(
    ("script", "statuses"),
    [(GOOD, {200}), (BROKEN, {200, 502}), ([ILL], {502}), ([REFUSED], {400}), ([CUT], {502})],
)
async def test_nothing_of_it_waits_for_garbage_to_be_collected(
    more: dict[str, Any], script: Iterable[Step], statuses: set[int], ours: bool
) -> None:
    """One that breaks off may have begun."""
    assert await status_of("/v1/completions", {**BODY, **more}, script, ours=ours) in statuses


@pytest.mark.parametrize(("script", "status"), [(ILL, 502), (REFUSED, 400), (CUT, 502)])
async def test_nor_does_anything_of_what_is_embedded(script: Step, status: int) -> None:
    assert await status_of("/v1/embeddings", {"input": ["the cat", "sat"]}, [script]) == status


async def status_of(
    path: str, body: dict[str, Any], script: Iterable[Step], *, ours: bool = True
) -> int:
    """The status of the answer to a call of which nothing is left behind."""
    scripts = [script] * TRIES * CHOICES
    async with http_cluster(Cluster(0, 1), tries=TRIES) as proxy, raw_server(*scripts) as node:
        stands_in(proxy, node, ours=ours)
        gc.collect()
        gc.disable()
        try:
            others = len(held())
            status, _ = await proxy.post(path, body)
            assert await left(others) == 0
        finally:
            gc.enable()
    return status
