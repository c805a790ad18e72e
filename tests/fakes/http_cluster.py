"""Fake nodes, the real proxy and a real client, joined by real HTTP."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random

import aiohttp
import msgspec

from api.served import Served
from api.tokenizing import TextCodec
from discovery.registration import Registration
from discovery.registry import Registry
from proxy.admin.guard import Guard
from proxy.admission.gate import AdmissionGate
from proxy.app import create_app
from proxy.health.health import Health
from proxy.nodes.client import HttpNodeClient
from proxy.nodes.instances import Instances
from proxy.nodes.lines import open_lines
from proxy.nodes.session import open_session
from proxy.observing.metrics import ProxyMetrics
from proxy.observing.observed import Observed
from proxy.pipeline import Pipeline
from proxy.pooling import PoolingPipeline
from proxy.routing.building import build_planner
from tests.fakes.cluster import Cluster
from tests.fakes.http_node import CLUSTER_KEY, HttpNode, node_app
from tests.fakes.serving import serving
from tests.fakes.text import byte_level

LAYOUT = {"dtype": "bytes", "block_size": 4}
CONTEXT = 200
PATIENCE_S = 10
ADMIN = "the admin's key"


@dataclass
class HttpCluster:
    """The proxy's address, a client, and all that is behind it."""

    cluster: Cluster
    registry: Registry
    door: Observed
    instances: Instances
    url: str
    session: aiohttp.ClientSession
    http: list[HttpNode]

    async def post(self, path: str, body: object, **headers: str) -> tuple[int, bytes]:
        url = f"http://{self.url}{path}"
        async with self.session.post(url, json=body, headers=headers) as answer:
            return answer.status, await answer.read()

    async def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        async with self.session.get(f"http://{self.url}{path}", headers=headers) as answer:
            return answer.status, await answer.read()

    @property
    def health(self) -> Health:
        return self.door.pipeline.health

    async def settled(self) -> int:
        """Blocks that are still taken when all streams are closed."""
        async with asyncio.timeout(PATIENCE_S):
            for http in self.http:
                await http.idle.wait()
        self.cluster.settle()
        return self.cluster.leaked_blocks


@asynccontextmanager
async def http_cluster(
    cluster: Cluster,
    *,
    announced: bool = True,
    tries: int = 4,
    guard: Guard | None = None,
    recovery_wait_s: float = 0.0,
    registry: Registry | None = None,
    codec: TextCodec | None = None,
    gate: AdmissionGate | None = None,
    drain_timeout_s: float = PATIENCE_S,
) -> AsyncGenerator[HttpCluster]:
    """Not announced, nodes are there and the proxy does not know."""
    registry = known = Registry(ttl_s=60) if registry is None else registry

    def announce(registration: Registration) -> None:
        if announced:
            known.apply(registration, now=time.monotonic())

    async with AsyncExitStack() as stack:
        nodes = cluster.nodes.values()
        http = [HttpNode(node, announce, drain_timeout_s) for node in nodes]
        for one in http:
            node, app = one.node, node_app(one)
            address = await stack.enter_async_context(serving(app))
            node.registration = msgspec.structs.replace(
                node.registration, http_address=address, kv_layout=LAYOUT, max_model_len=CONTEXT
            )
            one.identity.registration = node.registration
            announce(node.registration)
            stack.callback(asyncio.create_task(one.duty.run()).cancel)
        session = await stack.enter_async_context(open_session())
        client = HttpNodeClient(await stack.enter_async_context(open_lines()))
        health = Health(registry)
        pipeline = Pipeline(
            registry,
            build_planner("round_robin", "round_robin", "never", Random(0)),
            client,
            health,
            tries=tries,
            recovery_wait_s=recovery_wait_s,
        )
        pooling = PoolingPipeline(pipeline, client)
        door = Observed(pipeline, ProxyMetrics(registry, health), "tiny", pooling)
        served = Served(("tiny",), codec or byte_level(), lambda: CONTEXT)
        stack.callback(served.grammars.close)
        instances = Instances(session, registry, CLUSTER_KEY.encode(), beat_s=0.01)
        let_in = guard or Guard(admin_key=ADMIN)
        app = create_app(door, served, instances, let_in, gate or AdmissionGate())
        url = await stack.enter_async_context(serving(app))
        probing = asyncio.create_task(instances.run())
        stack.callback(probing.cancel)
        yield HttpCluster(cluster, registry, door, instances, url, session, http)
