"""Fake nodes, the real proxy and a real client, joined by real HTTP."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random

import aiohttp
import msgspec

from api.reasoning.formats import OFF, ReasoningParser
from api.served import ServedModel
from api.text.tokenizing import TextCodec
from api.text_files import TextParcel
from discovery.registration import Registration
from discovery.registry import Registry
from discovery.signed_calls import CallKey, Signing
from engine.grammars.checking import GrammarChecker
from node.signed_calls_only import SignedCallsOnly
from node.text_files_route import TextFilesRoute
from proxy.admin.guard import Guard, is_for_clients
from proxy.admission.gate import AdmissionGate
from proxy.app import create_app
from proxy.health.health import Health
from proxy.models.catalogue import Catalogue, ModelSettings
from proxy.models.fetching import HttpFetcher
from proxy.models.model_pools import ConfiguredNames
from proxy.models.model_wait import ModelWait
from proxy.models.text_store import ModelTextStore
from proxy.nodes.client import HttpNodeClient
from proxy.nodes.connection_pool import open_connections
from proxy.nodes.instances import Instances
from proxy.nodes.session import open_session
from proxy.observing.metrics import ProxyMetrics
from proxy.observing.observed_pipeline import ObservedPipeline
from proxy.pipeline import Pipeline
from proxy.pooling import PoolingPipeline
from proxy.routing.building import build_planner
from proxy.serving.corked import CorkedProtocol
from proxy.serving.cors import CorsPolicy, with_cors
from tests.fakes.cluster import Cluster
from tests.fakes.http_node import CLUSTER_KEY, HttpNode, node_app
from tests.fakes.serving import serving
from tests.fakes.text import byte_level

LAYOUT = {"dtype": "bytes", "block_size": 4}
CONTEXT = 200
PATIENCE_S = 60
ADMIN = "the admin's key"


@dataclass
class HttpCluster:
    """The proxy's address, a client, and all that is behind it."""

    cluster: Cluster
    registry: Registry
    door: ObservedPipeline
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

    def signed(self, path: str, method: str = "POST") -> Mapping[str, str]:
        """Headers for who calls a node itself."""
        return self.instances.signing.headers(method, path)

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
    reasoning_parser: ReasoningParser = OFF,
    gate: AdmissionGate | None = None,
    drain_timeout_s: float = PATIENCE_S,
    parcels: Mapping[str, TextParcel] | None = None,
    key: bytes | None = CLUSTER_KEY.encode(),
    foreign_key: str | None = None,
    foreign_part_s: float = PATIENCE_S,
    origins: Sequence[str] = (),
) -> AsyncGenerator[HttpCluster]:
    """Not announced, nodes are there and the proxy does not know.

    With `parcels` by node id, the proxy has no model files: nodes bring them. Nodes want calls
    to be signed; the proxy signs with `key`.
    """
    registry = known = Registry(ttl_s=60) if registry is None else registry

    def announce(registration: Registration) -> None:
        if announced:
            known.apply(registration, now=time.monotonic())

    async with AsyncExitStack() as stack:
        nodes = cluster.nodes.values()
        http = [HttpNode(node, announce, drain_timeout_s) for node in nodes]
        for one in http:
            await _open(stack, one, parcels.get(one.node.node_id) if parcels else None)
            announce(one.node.registration)
        session = await stack.enter_async_context(open_session(foreign_key))
        lines = await stack.enter_async_context(open_connections())
        signing = Signing.of(key)
        client = HttpNodeClient(
            lines, foreign_part_s=foreign_part_s, foreign_key=foreign_key, signing=signing
        )
        health = Health(registry)
        planner = build_planner("round_robin", "round_robin", "never", Random(0))
        parts = registry, planner, client, health
        door = _door(Pipeline(*parts, max_tries=tries, recovery_wait_s=recovery_wait_s), client)
        models: ServedModel | Catalogue = ServedModel(
            *(("tiny",), codec or byte_level(), lambda: CONTEXT),
            reasoning_parser=reasoning_parser,
        )
        if parcels is not None:
            models = _catalogue(health, HttpFetcher(session, signing), recovery_wait_s)
            stack.callback(asyncio.create_task(models.run()).cancel)
        stack.callback(models.grammars.close)
        instances = Instances(session, registry, key, beat_s=0.01)
        shields = guard or Guard(admin_key=ADMIN), gate or AdmissionGate()
        app = create_app(door, models, instances, *shields)
        pages = CorsPolicy.of(origins, is_for_clients)
        url = await stack.enter_async_context(
            serving(with_cors(app, pages), kind=CorkedProtocol, beside=pages.headers)
        )
        stack.callback(asyncio.create_task(instances.run()).cancel)
        yield HttpCluster(cluster, registry, door, instances, url, session, http)


def _door(pipeline: Pipeline, client: HttpNodeClient) -> ObservedPipeline:
    metrics = ProxyMetrics(pipeline.registry, pipeline.health)
    return ObservedPipeline(pipeline, metrics, "tiny", PoolingPipeline(pipeline, client))


async def _open(stack: AsyncExitStack, one: HttpNode, parcel: TextParcel | None) -> None:
    app = node_app(one)
    app.register_blueprint(TextFilesRoute(parcel).blueprint())
    keyed = SignedCallsOnly(app, CallKey.of(CLUSTER_KEY), one.metrics.refused)
    address = await stack.enter_async_context(serving(keyed))
    one.node.registration = _at(address, one.node.registration, parcel)
    one.identity.registration = one.node.registration
    stack.callback(asyncio.create_task(one.duty.run()).cancel)


def _at(address: str, said: Registration, parcel: TextParcel | None) -> Registration:
    return msgspec.structs.replace(
        said,
        http_address=address,
        kv_layout=LAYOUT,
        max_model_len=CONTEXT,
        text_digest=parcel and parcel.digest,
    )


def _catalogue(health: Health, fetcher: HttpFetcher, wait_s: float) -> Catalogue:
    """Of a proxy that is told nothing about models."""
    own = ModelSettings(ConfiguredNames(frozenset(), ("model",)))
    parts = health.registry, ModelTextStore(fetcher), own, GrammarChecker(), health
    return Catalogue(*parts, ModelWait(wait_s, 0.0))
