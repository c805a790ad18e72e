"""One node, from its settings to its end: the engine process, the HTTP door, the heartbeat."""

import asyncio
import contextlib
import logging
import signal
import socket
import time
from dataclasses import dataclass
from uuid import uuid4

import uvloop
from quart import Quart

from api.defaults import load_defaults
from api.door.keeper import LARGEST_BODY, DoorLimits, Keeper
from api.routes import openai_routes
from api.served import Served
from api.text.tokenizing import TextCodec, load_text_codec
from api.text_files import Parcel
from discovery.address import format_address
from discovery.announcer import Announcer
from discovery.errors import DiscoveryError
from discovery.lifeline import end_with, tell
from discovery.logs import start_logging
from discovery.ports import listening_at
from discovery.registration import Registration, Role
from discovery.signed_calls import CallKey
from engine.grammars.checking import GrammarChecker
from engine.settings import EngineConfig
from node.addresses import UnreachableAddress, advertised_host
from node.config import HTTP_PORTS, KV_PORTS, NodeConfig
from node.door import Door
from node.duty import Duty
from node.engine_client import EngineClient, EngineDied
from node.failures import first_of
from node.identity import Identity
from node.ipc import EngineJob
from node.keyed_door import Asgi, KeyedDoor
from node.legs import LegFinder
from node.metrics import NodeMetrics
from node.orders import OrderDoor
from node.serving import DoorServer, http_of
from node.text_door import TextDoor, parcel_of

GONE_S = 10.0  # a proxy's host
SLOW_CLIENT_S = 600.0  # a proxy is slow where its client is, and cuts that itself
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
DECODE_NICENESS = 5  # where cores are shared, a batch of decode steps is what can wait
log = logging.getLogger(__name__)


def run(role: Role, config: NodeConfig) -> None:
    """Serve until told to stop; SystemExit with the reason where it cannot."""
    start_logging(config.log_level, lossy=config.supervisor_fd is not None)
    if config.supervisor_fd is not None:
        end_with(config.supervisor_fd)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_serve(role, config))
        except (EngineDied, UnreachableAddress, DiscoveryError, OSError) as error:
            raise SystemExit(f"the {role.name.lower()} node ends: {error}") from error


async def _serve(role: Role, config: NodeConfig) -> None:
    host = advertised_host(config.host, config.advertise_host, config.proxy)
    port = HTTP_PORTS[role] if config.port is None else config.port
    with _listen(config.host, port) as listening:
        http_port, node_id = listening.getsockname()[1], uuid4().hex
        (codec, parcel), engine = await asyncio.gather(
            asyncio.to_thread(_load_text, config),
            EngineClient.start(_job(role, config, node_id, host)),
        )
        addresses = (
            format_address(host, http_port),
            format_address(host, engine.ready.kv_port),
        )
        text_digest = parcel.digest if parcel else None
        told = role, node_id, _names(config), addresses, engine.ready, text_digest
        identity = Identity.of(*told)
        text = TextDoor(parcel)
        try:
            with GrammarChecker() as grammars:
                await _Node(config, engine, identity, listening, codec, grammars, text).run()
        finally:
            await engine.stop()


@dataclass(slots=True)
class _Node:
    """The parts of a running node; each ends with it."""

    config: NodeConfig
    engine: EngineClient
    identity: Identity
    listening: socket.socket
    codec: TextCodec
    grammars: GrammarChecker
    text: TextDoor

    async def run(self) -> None:
        """Until a signal comes and what was running is done; raises EngineDied."""
        try:
            await self._serve()
        except BaseExceptionGroup as failures:
            raise first_of(failures, EngineDied) or failures from None

    async def _serve(self) -> None:
        keeper = Keeper(DoorLimits(write_s=SLOW_CLIENT_S, gone_s=GONE_S))
        announcer = self._announcer()
        duty = self._duty(announcer)
        server = DoorServer(http_of(self._app(duty), keeper))
        async with asyncio.TaskGroup() as tasks:
            rooms = self.engine, announcer, duty, keeper
            parts = [tasks.create_task(room.run()) for room in rooms]
            serving = tasks.create_task(server.serve(sockets=[self.listening]))
            try:
                self._say_ready()
                told = await _stop_signal()
                self.identity.stopping = True
                announcer.announce_now()
                await self._drained(told)
                self.engine.dismiss()
                server.should_exit = True
                await serving
            finally:
                server.hear_nobody()
            for part in parts:
                part.cancel()

    def _duty(self, announcer: Announcer) -> Duty:
        return Duty(
            self.identity,
            self.engine,
            announcer.announce_now,
            lambda role: _niceness(role, self.config),
            self.config.drain_timeout_s,
        )

    def _app(self, duty: Duty) -> Asgi:
        metrics, names = NodeMetrics(), _names(self.config)
        self.engine.on_news = metrics.book
        legs = LegFinder(self.identity.registration.zmq_address)
        door = Door(self.engine, metrics, self._registration, legs, self.grammars)
        longest = self.engine.ready.max_model_len
        served = Served(
            names,
            self.codec,
            lambda: longest,
            created=int(time.time()),
            defaults=load_defaults(self.config.generation_config, self.config.model),
            max_logprobs=self.config.max_logprobs,
            tool_call_parser=self.config.tool_call_parser,
            reasoning_parser=self.config.reasoning_parser,
            pooling=self.engine.ready.pooling,
            grammars=self.grammars,
        )
        app = Quart("pdserve-node")
        app.config["MAX_CONTENT_LENGTH"] = LARGEST_BODY
        app.register_blueprint(door.blueprint())
        app.register_blueprint(OrderDoor.of(duty, self.config.cluster_key).blueprint())
        app.register_blueprint(self.text.blueprint())
        app.register_blueprint(
            openai_routes(self.engine, served, legs.of_text, embedder=self.engine)
        )
        key = self.config.cluster_key
        return KeyedDoor(app, CallKey.of(key), metrics.refused) if key else app

    def _announcer(self) -> Announcer:
        key = self.config.cluster_key
        secret = key.encode() if key else None
        return Announcer.connect(self.config.proxy, self._heartbeat, cluster_key=secret)

    def _heartbeat(self) -> Registration | None:
        """None while the engine hangs: nothing new is to be sent here."""
        return self._registration() if self.engine.alive else None

    def _registration(self) -> Registration:
        return self.identity.now(self.engine.load)

    def _say_ready(self) -> None:
        one = self.identity.registration
        log.info(
            "ready: %s node %s serves %s at http://%s, KV at %s",
            one.type.name.lower(),
            one.node_id,
            one.model,
            one.http_address,
            one.zmq_address,
        )
        if self.config.supervisor_fd is not None:
            tell(self.config.supervisor_fd, http_address=one.http_address)

    async def _drained(self, told: signal.Signals) -> None:
        """Nobody listens and nobody will fetch, or it takes too long."""
        patience_s, engine = self.config.drain_timeout_s, self.engine
        log.info(
            "stopping by %s: %d legs that run, and KV that is to be fetched, have %g s",
            *(told.name, engine.num_legs, patience_s),
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await engine.calm.wait()
        log.info("stopped with %d legs that others have to end", engine.num_legs)


async def _stop_signal() -> signal.Signals:
    """The first that says so; another SIGTERM or SIGINT is not waited for by anybody.

    A terminal that is closed says so more than once, and to who was started with nohup, never.
    """
    loop = asyncio.get_running_loop()
    told: asyncio.Future[signal.Signals] = loop.create_future()
    heard = [one for one in STOP_SIGNALS if not _is_deaf_to(one)]
    for number in heard:
        loop.add_signal_handler(number, _note, told, number)
    first = await told
    for number in heard:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN if number is signal.SIGHUP else signal.SIG_DFL)
    return first


def _note(told: "asyncio.Future[signal.Signals]", number: signal.Signals) -> None:
    if not told.done():
        told.set_result(number)


def _is_deaf_to(number: signal.Signals) -> bool:
    return number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with listening_at(port, "--port; of pdserve up: --prefill-ports, --decode-ports"):
        return socket.create_server((host, port), family=family, backlog=1024)


def _job(role: Role, config: NodeConfig, node_id: str, host: str) -> EngineJob:
    engine = {name: getattr(config, name) for name in EngineConfig.__dataclass_fields__}
    return EngineJob(
        engine=EngineConfig(**engine),
        ipc_address=f"ipc://@pdserve-{node_id}",
        engine_id=node_id,
        connector=config.kv_connector,
        kv_host=config.host,
        kv_port=KV_PORTS[role] if config.kv_port is None else config.kv_port,
        advertise_host=host,
        log_level=config.log_level,
        kv_checksum=config.kv_checksum,
        kv_load_failure=config.kv_load_failure,
        niceness=_niceness(role, config),
        cluster_key=config.cluster_key,
        lossy_log=config.supervisor_fd is not None,
    )


def _niceness(role: Role, config: NodeConfig) -> int:
    return DECODE_NICENESS if role is Role.DECODE and config.device == "cpu" else 0


def _names(config: NodeConfig) -> tuple[str, ...]:
    return config.served_model_name or (config.model,)


def _load_text(config: NodeConfig) -> tuple[TextCodec, Parcel | None]:
    codec = load_text_codec(config.tokenizer or config.model)
    return codec, parcel_of(config, codec)
