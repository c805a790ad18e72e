"""The proxy before fake nodes of vLLM, and what it is to answer."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from discovery.registration import Role
from engine.request import Request, RequestId, Sampling
from tests.fakes.cluster import Cluster
from tests.fakes.http_cluster import HttpCluster, http_cluster
from tests.fakes.model import alone
from tests.fakes.vllm_node import Connector, Network, VllmNode, vllm_nodes

PROMPT = [7, 3, 11, 19, 5]
PATIENCE_S = 60
CALM = {"temperature": 0, "max_tokens": 6}


def golden(max_tokens: int = 6, **sampling: Any) -> list[int]:  # noqa: ANN401
    asked = Sampling(max_tokens, temperature=0, **sampling)
    return alone(Request(RequestId("r"), tuple(PROMPT), asked))


@asynccontextmanager
async def behind(*nodes: VllmNode, **settings: Any) -> AsyncGenerator[HttpCluster]:  # noqa: ANN401
    async with vllm_nodes(*nodes), http_cluster(Cluster(0, 0), **settings) as proxy:
        for node in nodes:
            proxy.registry.apply(node.registration, now=time.monotonic())
        yield proxy


def pair(connector: Connector = Connector.PULL, **more: Any) -> tuple[VllmNode, VllmNode]:  # noqa: ANN401
    network = Network()
    return VllmNode(Role.PREFILL, network, connector, **more), VllmNode(
        Role.DECODE, network, connector, **more
    )


async def ask(proxy: HttpCluster, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    body = {"prompt": PROMPT, "return_token_ids": True, **CALM, **more}
    async with asyncio.timeout(PATIENCE_S):
        status, data = await proxy.post("/v1/completions", body)
    assert status == 200, data
    said: dict[str, Any] = msgspec.json.decode(data)
    return said


def tokens_of(said: dict[str, Any]) -> list[int]:
    found: list[int] = said["choices"][0]["token_ids"]
    return found
