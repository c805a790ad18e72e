"""Turns settings into a running proxy."""

import asyncio
import logging
import resource
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType

import aiohttp
import uvicorn
import uvloop
import zmq
from quart import Quart

from api.defaults import load_defaults
from api.door.limiter import ConnectionLimiter, DoorLimits
from api.door.protocol import limited_protocol
from api.pooling.model_config import load_pooling
from api.shutdown_logging import hide_cancellation_tracebacks
from api.text.tokenizing import load_text_codec
from discovery.garbage_collection import freeze_loaded_objects
from discovery.lifeline import end_with_supervisor, report_to_starter
from discovery.logs import start_logging
from discovery.registry import Registry
from discovery.signed_calls import Signing
from discovery.terminal import handle_hang_ups
from engine.grammars.checking import GrammarChecker
from engine.request import ModelKey
from proxy.admin.guard import Guard, is_for_clients
from proxy.admin.secrets import MalformedSecrets, Secrets
from proxy.admin.stopping_health import StoppingHealth
from proxy.admission.admission import Admission
from proxy.admission.gate import AdmissionGate
from proxy.admission.pools import NodeCounts
from proxy.admission.rates import RateBuckets
from proxy.app import create_app
from proxy.config import ProxyConfig
from proxy.health.health import Health
from proxy.models.cache import ParcelCache, default_folder
from proxy.models.catalogue import Catalogue, ModelSettings
from proxy.models.fetching import HttpFetcher
from proxy.models.model_pools import ConfiguredNames
from proxy.models.model_wait import STARTUP_S, ModelWait
from proxy.models.text_store import ModelText, ModelTextStore
from proxy.nodes.client import HttpNodeClient
from proxy.nodes.connection_pool import ConnectionPool, open_connections
from proxy.nodes.instances import Instances
from proxy.nodes.model_names import ModelNameProbe
from proxy.nodes.session import open_session
from proxy.observing.admission_metrics import AdmissionMetrics, ConnectionMetrics
from proxy.observing.metrics import ProxyMetrics
from proxy.observing.observed_pipeline import ObservedPipeline
from proxy.observing.timeline_store import TimelineStore
from proxy.observing.tracing import build_tracing
from proxy.pipeline import Pipeline
from proxy.pooling import PoolingPipeline
from proxy.routing.building import build_planner
from proxy.routing.capacity import NodeCapacity
from proxy.routing.layouts import layout_difference
from proxy.serving.corked import CorkedProtocol
from proxy.serving.cors import CorsPolicy, with_cors
from proxy.serving.listening import listen
from proxy.workers.process import ProxyProcess, cluster_key, socket_address
from proxy.workers.rates import SharedRates

FILES_PER_CLIENT = 3  # its connection, and one to each of two nodes
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

logger = logging.getLogger(__name__)


def run(config: ProxyConfig) -> None:
    """Serve until a signal to stop; running streams may finish within --drain-timeout-s.

    Raises SystemExit with the reason if that is impossible.
    """
    start_logging(config.log_level, lossy=config.supervisor_fd is not None)
    # not in our log format
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # Nor is the caller: https://docs.python.org/3/howto/logging.html#optimization
    logging._srcfile = None
    if config.supervisor_fd is not None:
        end_with_supervisor(config.supervisor_fd)
    for stop in STOP_SIGNALS:
        signal.signal(stop, signal.SIG_DFL)  # end at once, until there is something to finish
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there are files to reload
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_serve(ProxyProcess.open(config)))
        except (OSError, MalformedSecrets, zmq.ZMQError) as error:
            raise SystemExit(f"the proxy ends: {error}") from error


async def _serve(process: ProxyProcess) -> None:
    config = process.config
    registry = Registry(differ=layout_difference)
    secrets = Secrets.of(config, parts=config.workers)
    async with AsyncExitStack() as stack:
        stack.enter_context(closing(process))
        process.open_discovery(registry)
        session = await stack.enter_async_context(open_session(config.foreign_api_key))
        key = cluster_key(config)
        instances = Instances(session, registry, key, peers=process.peers)
        catalogue = _catalogue(config, registry, session)
        stack.enter_context(catalogue.grammars)
        ingress = _ingress(config, catalogue.health)
        lines = await stack.enter_async_context(open_connections())
        app = build(config, instances, lines, catalogue, ingress, secrets.guard)
        health = StoppingHealth(app.asgi_app)
        http = _uvicorn(health, config, secrets, ingress.limiter)
        server = _Server(http, health, process.discovery, config)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        parts = instances, catalogue, secrets.watch, ingress.gate, ingress.limiter
        helpers = [process.feed_registry(registry), *(part.run() for part in parts)]
        # nodes that register no model have the configured one, if there is one
        helpers.append(ModelNameProbe(session, registry, fixed_name=bool(config.models)).run())
        if process.hub is not None:
            rates = ingress.gate.admission.rates
            helpers.append(SharedRates(rates, process.peers, process.worker_id).run())
        running = [tasks.create_task(helper) for helper in helpers]
        handle_hang_ups(secrets.watch.reload_now, stop=server.stop)
        freeze_loaded_objects()
        await server.serve(sockets=[process.client_socket])
        for helper in running:
            helper.cancel()


@dataclass(frozen=True, slots=True)
class Ingress:
    """Limits on clients: `limiter` on their connections, `gate` on their requests."""

    gate: AdmissionGate
    limiter: ConnectionLimiter


def build(
    config: ProxyConfig,
    instances: Instances,
    lines: ConnectionPool,
    models: Catalogue,
    ingress: Ingress,
    guard: Guard,
) -> Quart:
    """Build the app with these settings."""
    registry, health = instances.registry, models.health
    patience = (config.silence_timeout_s, config.foreign_timeout_s, config.first_sign_timeout_s)
    client = HttpNodeClient(
        lines, *patience, foreign_key=config.foreign_api_key, signing=instances.signing
    )
    pipeline = Pipeline(
        registry,
        build_planner(*config.policies, config.local_prefill, Random(), _capacity(config)),
        client,
        health,
        max_tries=config.tries,
        recovery_wait_s=config.recovery_wait_s,
        startup_until=time.monotonic() + STARTUP_S,
    )
    pooling = PoolingPipeline(pipeline, client)
    kept = TimelineStore(config.timeline_kept)
    spans = build_tracing(config.otlp_traces_endpoint, config.names[0])
    metrics = ProxyMetrics(registry, health)
    metrics.all.register(AdmissionMetrics(ingress.gate))
    metrics.all.register(ConnectionMetrics(ingress.limiter))
    door = ObservedPipeline(pipeline, metrics, config.names[0], pooling, kept, spans)
    return create_app(door, models, instances, guard, ingress.gate)


class _Server(uvicorn.Server):
    """Reports when it is ready and when it begins to stop; handles signals in between."""

    def __init__(
        self,
        server: uvicorn.Config,
        health: StoppingHealth,
        discovery: str,
        config: ProxyConfig,
    ) -> None:
        super().__init__(server)
        self.health = health
        self.discovery = discovery
        self.supervisor = config.supervisor_fd
        self.notice_s = config.drain_notice_s

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do not raise signals again after the shutdown, as uvicorn does."""
        for stop in STOP_SIGNALS:
            signal.signal(stop, self.handle_exit)
        yield

    def stop(self) -> None:
        """Stop as on a first signal."""
        self.handle_exit(signal.SIGTERM, None)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Make /health report that the proxy stops at once."""
        self.health.stopping = True
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        await listen(self, sockets or [])
        address = socket_address((sockets or [])[0])
        url = f"{'https' if self.config.is_ssl else 'http'}://{address}"
        logger.info("ready on %s (nodes register at %s)", url, self.discovery)
        if self.supervisor is not None:
            report_to_starter(
                self.supervisor, http_address=address, discovery_address=self.discovery
            )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        patience_s = self.config.timeout_graceful_shutdown
        logger.info("stopping: running streams have %s s to end", patience_s)
        await asyncio.sleep(self.notice_s)
        await super().shutdown(sockets)


def _uvicorn(
    app: StoppingHealth, config: ProxyConfig, secrets: Secrets, limiter: ConnectionLimiter
) -> uvicorn.Config:
    hide_cancellation_tracebacks()
    origins = CorsPolicy.of(config.allowed_origins, is_for_clients)
    http = uvicorn.Config(
        with_cors(app, origins),
        http=limited_protocol(limiter, CorkedProtocol, origins.headers),
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        log_level="warning",
        timeout_graceful_shutdown=round(config.drain_timeout_s),
        ssl_certfile=config.ssl_certfile,
        ssl_keyfile=config.ssl_keyfile,
    )
    http.load()
    http.ssl = secrets.tls_context()  # uvicorn's own keeps to the files of the start
    return http


def _capacity(config: ProxyConfig) -> NodeCapacity:
    return NodeCapacity(config.node_limits, config.prefill_node_limits, config.workers)


def _ingress(config: ProxyConfig, health: Health) -> Ingress:
    rates = RateBuckets(since=time.monotonic())
    admission = Admission(config.limits, config.key_limits, rates=rates)
    capacity = _capacity(config)

    def counts(model: ModelKey | None) -> NodeCounts:
        return capacity.count(health.registry, health.proven, time.monotonic(), model)

    gate = AdmissionGate(admission, counts, config.request_timeout_s)
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = None if files == resource.RLIM_INFINITY else files // FILES_PER_CLIENT
    write_s = config.slow_client_timeout_s
    return Ingress(
        gate, ConnectionLimiter(DoorLimits(write_s=write_s, gone_s=write_s, connections=most))
    )


def _catalogue(
    config: ProxyConfig, registry: Registry, session: aiohttp.ClientSession
) -> Catalogue:
    """Build the catalogue; takes seconds if there is a tokenizer to load."""
    folder = config.text_cache_dir
    cache = ParcelCache(Path(folder).expanduser() if folder else default_folder())
    texts = ModelTextStore(
        HttpFetcher(session, Signing.of(cluster_key(config))), cache, config.generation_config
    )
    settings = ModelSettings(
        ConfiguredNames(config.models, config.names),
        _own_text(config),
        config.max_model_len,
        config.max_logprobs,
        config.tool_call_parser,
        config.reasoning_parser,
    )
    model_wait = ModelWait(
        config.recovery_wait_s,
        timeout_s=config.request_timeout_s,
        most=config.max_queued_requests,
    )
    return Catalogue(registry, texts, settings, GrammarChecker(), Health(registry), model_wait)


def _own_text(config: ProxyConfig) -> ModelText | None:
    """The settings' text, which overrides what nodes provide, if they have a tokenizer."""
    defaults = load_defaults(config.generation_config, config.model)
    if (folder := config.text_folder) is None:
        return None
    return ModelText(load_text_codec(folder), defaults, load_pooling(config.model))
