"""Runs one node: engine process, HTTP server and heartbeats; drains on a signal."""

import asyncio
import contextlib
import logging
import signal
import socket
import time
from dataclasses import dataclass, replace
from uuid import uuid4

import uvloop

from api.defaults import load_defaults
from api.door.limiter import ConnectionLimiter, DoorLimits
from api.routes import http_app, openai_routes
from api.served import ServedModel
from api.text.tokenizing import TextCodec
from discovery.address import format_address
from discovery.announcer import Announcer
from discovery.errors import DiscoveryError
from discovery.garbage_collection import freeze_loaded_objects
from discovery.intake import check_receivable
from discovery.lifeline import end_with_supervisor, report_to_starter
from discovery.logs import start_logging
from discovery.ports import listening_at, passive_address
from discovery.registration import Registration, Role
from discovery.signed_calls import CallKey
from engine.grammars.checking import GrammarChecker
from engine.settings import read_lora_modules
from node.addresses import UnreachableAddress, advertised_host
from node.config import HTTP_PORTS, NodeConfig
from node.engine_client import EngineClient, EngineDied
from node.engine_job import engine_process_config, niceness_of
from node.failures import first_failure
from node.grpc_door import GrpcDoor, listen_for_grpc
from node.identity import NodeIdentity
from node.ipc import EngineOutputs
from node.kv_events.encoding import EventEncoder
from node.kv_events.publisher import KvEventPublisher, SilentPublisher, event_publisher
from node.kv_events.route import event_sources_route
from node.kv_events.settings import read_kv_events_config
from node.legs import LegFinder
from node.metrics import NodeMetrics
from node.order_route import OrderRoute
from node.refused_legs import RefusedLegs
from node.role_controller import RoleController
from node.routes import NodeRoutes
from node.serving import NodeServer, uvicorn_config
from node.signed_calls_only import Asgi, SignedCallsOnly
from node.text_files_route import TextFilesRoute
from node.text_loading import load_text
from node.vllm_metrics import VllmMetrics

GONE_S = 10.0  # without a sign of life from the proxy's host
SLOW_CLIENT_S = 600.0  # a proxy is as slow as its client, and cuts slow clients off itself
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
MOST_SHOWN = 8  # adapters, in a log line
log = logging.getLogger(__name__)


def run(role: Role, config: NodeConfig) -> None:
    """Serve until told to stop; raises SystemExit with the reason if that is impossible."""
    start_logging(config.log_level, lossy=config.supervisor_fd is not None)
    if config.supervisor_fd is not None:
        end_with_supervisor(config.supervisor_fd)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_serve(role, config))
        except (EngineDied, UnreachableAddress, DiscoveryError, OSError) as error:
            raise SystemExit(f"the {role.name.lower()} node ends: {error}") from error


async def _serve(role: Role, config: NodeConfig) -> None:
    host = advertised_host(config.host, config.advertise_host, config.proxy)
    _, address = passive_address(config.host, 0, "--host")
    config = replace(config, host=address)  # not a name: each part listens at the same one
    port = HTTP_PORTS[role] if config.port is None else config.port
    with _listen(config.host, port) as listening, _kv_events(config, host) as kv_events:
        http_port, node_id = listening.getsockname()[1], uuid4().hex
        grpc = listen_for_grpc(config)
        (codec, parcel), engine = await asyncio.gather(
            load_text(config),
            EngineClient.start(engine_process_config(role, config, node_id, host)),
        )
        kv_port = engine.ready.kv_port
        addresses = format_address(host, http_port), format_address(host, kv_port)
        text_digest = parcel.digest if parcel else None
        facts = role, node_id, config.served_names, addresses, engine.ready, text_digest
        identity = NodeIdentity.of(*facts)
        check_receivable(identity.registration)
        text = TextFilesRoute(parcel)
        try:
            with GrammarChecker() as grammars:
                parts = codec, grammars, text, kv_events, grpc
                freeze_loaded_objects()
                await _Node(config, engine, identity, listening, *parts).run()
        finally:
            await engine.stop()


@dataclass(slots=True)
class _Node:
    """Runs the parts of a node side by side until it is told to stop."""

    config: NodeConfig
    engine: EngineClient
    identity: NodeIdentity
    listening: socket.socket
    codec: TextCodec
    grammars: GrammarChecker
    text: TextFilesRoute
    kv_events: KvEventPublisher | SilentPublisher
    grpc: GrpcDoor

    async def run(self) -> None:
        """Run until a stop signal has come and the node has drained; raises EngineDied."""
        try:
            await self._serve()
        except BaseExceptionGroup as failures:
            raise first_failure(failures, EngineDied) or failures from None

    async def _serve(self) -> None:
        limiter = ConnectionLimiter(DoorLimits(write_s=SLOW_CLIENT_S, gone_s=GONE_S))
        announcer = self._announcer()
        controller = self._role_controller(announcer)
        served, legs = self._served(), LegFinder(self.identity.registration.zmq_address)
        server = NodeServer(uvicorn_config(self._app(controller, served, legs), limiter))
        grpc, sources = self.grpc, self.kv_events.sources
        facts = self.engine, self.identity, served, legs, sources, self.text.parcel
        await grpc.start(*facts)
        async with asyncio.TaskGroup() as tasks:
            services = self.engine, announcer, controller, limiter, self.kv_events, grpc
            parts = [tasks.create_task(service.run()) for service in services]
            serving = tasks.create_task(server.serve(sockets=[self.listening]))
            try:
                self._say_ready()
                stop = await _stop_signal()
                self.identity.stopping = True
                announcer.announce_now()
                await grpc.stop_taking_calls()
                await self._wait_until_drained(stop)
                self.engine.reject_legs()
                server.should_exit = True
                await grpc.close()
                await serving
            finally:
                server.stop_reading()
                await grpc.close()  # for parts that failed; once more does nothing
            for part in parts:
                part.cancel()

    def _role_controller(self, announcer: Announcer) -> RoleController:
        return RoleController(
            self.identity,
            self.engine,
            announcer.announce_now,
            lambda role: niceness_of(role, self.config),
            self.config.drain_timeout_s,
        )

    def _metrics(self) -> NodeMetrics:
        """They count what the engine reports; its cache events are published."""
        metrics, config = NodeMetrics(), self.config
        ready = self.engine.ready
        facts = ready.kv_layout, config.enable_prefix_caching, ready.adapters
        metrics.registry.register(VllmMetrics(metrics, config.served_names[0], *facts))

        def record(outputs: EngineOutputs) -> None:
            metrics.record(outputs)
            self.kv_events.publish(outputs.cache_events)
            self.grpc.publish(outputs.cache_events)

        self.engine.on_outputs = record
        return metrics

    def _served(self) -> ServedModel:
        ready = self.engine.ready
        return ServedModel(
            self.config.served_names,
            self.codec,
            lambda: ready.max_model_len,
            created=int(time.time()),
            defaults=load_defaults(self.config.generation_config, self.config.model),
            max_logprobs=self.config.max_logprobs,
            tool_call_parser=self.config.tool_call_parser,
            reasoning_parser=self.config.reasoning_parser,
            pooling=ready.pooling,
            grammars=self.grammars,
            adapters=ready.adapters,
        )

    def _app(self, controller: RoleController, served: ServedModel, legs: LegFinder) -> Asgi:
        metrics = self._metrics()
        door = NodeRoutes(self.engine, metrics, self._registration, legs, self.grammars)
        app = http_app("pdserve-node")
        refused = RefusedLegs(legs, self.engine.decline)
        app.after_request(refused.give_up)
        app.teardown_request(refused.give_up_left)
        app.register_blueprint(door.blueprint())
        app.register_blueprint(OrderRoute.of(controller, self.config.cluster_key).blueprint())
        app.register_blueprint(self.text.blueprint())
        app.register_blueprint(event_sources_route(self.kv_events.sources))
        app.register_blueprint(
            openai_routes(self.engine, served, legs.of_text, embedder=self.engine)
        )
        key = self.config.cluster_key
        return SignedCallsOnly(app, CallKey.of(key), metrics.refused) if key else app

    def _announcer(self) -> Announcer:
        key = self.config.cluster_key
        secret = key.encode() if key else None
        return Announcer.connect(self.config.proxy, self._heartbeat, cluster_key=secret)

    def _heartbeat(self) -> Registration | None:
        """The registration; None, so that nothing is sent, while the engine is not healthy."""
        return self._registration() if self.engine.alive else None

    def _registration(self) -> Registration:
        return self.identity.heartbeat(self.engine.load)

    def _say_ready(self) -> None:
        one = self.identity.registration
        log.info(
            "ready: %s node %s serves %s at http://%s, KV at %s",
            one.type.name.lower(),
            one.node_id,
            _shown(one),
            one.http_address,
            one.zmq_address,
        )
        if self.grpc.port is not None:
            log.info("gRPC at %s", format_address(self.config.host, self.grpc.port))
        if self.config.supervisor_fd is not None:
            report_to_starter(self.config.supervisor_fd, http_address=one.http_address)

    async def _wait_until_drained(self, stop: signal.Signals) -> None:
        """Wait until no leg is open and no KV waits to be fetched, or for --drain-timeout-s."""
        patience_s, engine = self.config.drain_timeout_s, self.engine
        log.info(
            "stopping by %s: %d legs that run, and KV that is to be fetched, have %g s",
            *(stop.name, engine.num_legs, patience_s),
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await engine.quiescent.wait()
        log.info("stopped with %d legs that others have to end", engine.num_legs)


async def _stop_signal() -> signal.Signals:
    """Wait for the first stop signal; another SIGTERM or SIGINT then ends the process at once.

    A closed terminal sends SIGHUP more than once; under nohup SIGHUP stays ignored.
    """
    loop = asyncio.get_running_loop()
    received: asyncio.Future[signal.Signals] = loop.create_future()
    handled = [one for one in STOP_SIGNALS if not _is_ignored(one)]
    for number in handled:
        loop.add_signal_handler(number, _note, received, number)
    first = await received
    for number in handled:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN if number is signal.SIGHUP else signal.SIG_DFL)
    return first


def _note(received: "asyncio.Future[signal.Signals]", number: signal.Signals) -> None:
    if not received.done():
        received.set_result(number)


def _is_ignored(number: signal.Signals) -> bool:
    return number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with listening_at(port, "--port; of pdserve up: --prefill-ports, --decode-ports"):
        return socket.create_server((host, port), family=family, backlog=1024)


def _kv_events(
    config: NodeConfig, host: str
) -> contextlib.AbstractContextManager[KvEventPublisher | SilentPublisher]:
    wanted = read_kv_events_config(config.kv_events_config)
    adapters = [module.name for module in read_lora_modules(config.lora_modules)]
    encoder = EventEncoder(config.block_size, adapters, wanted.encoding == "array")
    return event_publisher(wanted, encoder, config.host, host)


def _shown(registration: Registration) -> str:
    """The model and its first adapters, for a log line."""
    shown, more = registration.adapters[:MOST_SHOWN], len(registration.adapters) - MOST_SHOWN
    names = ", ".join((f"{registration.model}", *shown))
    return f"{names} and {more} more adapters" if more > 0 else names
