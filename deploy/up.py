"""`pdserve up`: runs a proxy, X prefill and Y decode nodes on this machine as one cluster."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from shlex import quote

import msgspec

from deploy.config import UpConfig
from deploy.standard_files import say
from deploy.supervisor import Facts, ProcessFailed, SupervisedProcess
from discovery.logs import LOG_FORMAT
from discovery.registration import DEFAULT_PORT, Role
from discovery.terminal import handle_hang_ups
from engine.cores import usable_cores
from node.config import ServingOptions
from proxy.config import ProxyOptions
from proxy.workers.node_counts import node_count_key

LOOK_AGAIN_S = 0.1
STOP_MARGIN_S = 5.0
PREFIX = "PDSERVE_"
OWN, PROXY = "up", "proxy"
NAME_WIDTH = 9
NODE_OPTIONS = sorted(
    {*ServingOptions.__dataclass_fields__}
    - {"cluster_key", "device", "threads", "served_model_name", "tensor_parallel_size"}
)
SECRETS = "admin_api_key", "foreign_api_key"
SHARED = {"host", "model", "tokenizer", "drain_timeout_s", "log_level"}
SHARED |= {"generation_config", "max_logprobs", "tool_call_parser", "reasoning_parser"}
PROXY_OPTIONS = sorted(
    {*SHARED, *ProxyOptions.__dataclass_fields__} - {"api_key", *SECRETS}  # by variable
)


def run(config: UpConfig) -> None:
    """Run until Ctrl-C or SIGTERM; raises SystemExit with the reason if it cannot start."""
    start_logging(config.log_level)
    try:
        asyncio.run(_until_signal(config))
    except ProcessFailed as error:
        raise SystemExit(f"pdserve up: {error}") from error
    except TimeoutError as error:
        raise SystemExit("pdserve up: not ready within --ready-timeout-s") from error


def start_logging(level: str) -> None:
    """Log to standard error, in the format of the processes whose lines we show."""
    logging.basicConfig(level=level.upper(), format=_beside(OWN, LOG_FORMAT))


async def _until_signal(config: UpConfig) -> None:
    cluster = LocalCluster(config)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, cluster.stop)
    handle_hang_ups(cluster.reread, stop=cluster.stop)
    running = asyncio.create_task(cluster.run())
    either: set[asyncio.Future[None] | asyncio.Future[str]] = {running, cluster.ready}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if not running.done():
        _say_ready(config, cluster.ready.result())
    await running


def _beside(name: str, line: str) -> str:
    return f"{name:>{NAME_WIDTH}} | {line}"


def _say(line: str) -> None:
    """The cluster goes on if nobody reads any more."""
    say(line + "\n", needed=False)


@dataclass(slots=True)
class LocalCluster:
    """Starts all processes in `run`, and has stopped them when `run` returns.

    `ready` gets the proxy's URL once all nodes are registered. Must be created within a running
    event loop.
    """

    config: UpConfig
    show: Callable[[str], None] = _say
    ready: "asyncio.Future[str]" = field(default_factory=lambda: asyncio.Future())
    proxy: SupervisedProcess = field(init=False)
    nodes: Sequence[SupervisedProcess] = field(init=False)
    _told: asyncio.Event = field(default_factory=asyncio.Event)
    _failure: ProcessFailed | TimeoutError | None = None

    def __post_init__(self) -> None:
        """Name the processes; none runs yet."""
        self.proxy = self._child(PROXY, self._proxy_arguments)
        self.nodes = [
            self._child(f"{role.name.lower()}-{index}", partial(self._node, role, index))
            for role in Role
            for index in range(self.config.count(role))
        ]

    async def run(self) -> None:
        """Start, and keep running until `stop`; raises ProcessFailed or TimeoutError.

        A failure ends the others as `stop` does, and is raised once they are gone.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                starting = tasks.create_task(self._start(tasks))
                await self._told.wait()
                starting.cancel()
                await self._end()
        finally:
            await self._end()
            self.ready.cancel()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """End the cluster once its streams are over; when called again, at once."""
        if self._told.is_set():
            for child in (self.proxy, *self.nodes):
                child.kill()
        self._told.set()

    def reread(self) -> None:
        """Have the proxy reload its keys and certificates."""
        self.proxy.reread()

    async def _start(self, tasks: asyncio.TaskGroup) -> None:
        """Start the proxy first, since nodes need to know where it listens."""
        try:
            async with asyncio.timeout(self.config.ready_timeout_s):
                tasks.create_task(self._keep(self.proxy))
                scheme = "https" if self.config.ssl_certfile else "http"
                url = f"{scheme}://{(await self.proxy.ready)['http_address']}"
                for node in self.nodes:
                    tasks.create_task(self._keep(node))
                await self._registered()
        except TimeoutError as late:
            self._fail(late)
        else:
            self.ready.set_result(url)

    async def _keep(self, child: SupervisedProcess) -> None:
        try:
            await child.run()
        except ProcessFailed as failure:
            self._fail(failure)

    def _fail(self, failure: ProcessFailed | TimeoutError) -> None:
        self._failure = self._failure or failure
        self._told.set()

    async def _registered(self) -> None:
        """Wait until every node is ready, and the proxy knows as many; it may know others."""
        await asyncio.gather(*(node.ready for node in self.nodes))
        while not self._has_all(self.proxy.latest):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_AGAIN_S)

    def _has_all(self, told: Facts) -> bool:
        known = {role: int(told.get(node_count_key(role), 0)) for role in Role}
        return all(known[role] >= self.config.count(role) for role in Role)

    async def _end(self) -> None:
        """Stop the proxy first: what it still relays needs the nodes."""
        await self.proxy.stop()
        await asyncio.gather(*(node.stop() for node in self.nodes))

    def _child(self, name: str, arguments: Callable[[], Sequence[str]]) -> SupervisedProcess:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(PREFIX)}
        if self.config.cluster_key:
            environment[f"{PREFIX}CLUSTER_KEY"] = self.config.cluster_key
        if self.config.api_key and name == PROXY:
            environment[f"{PREFIX}API_KEY"] = " ".join(self.config.api_key)
        for secret in SECRETS if name == PROXY else ():
            if value := getattr(self.config, secret):
                environment[f"{PREFIX}{secret.upper()}"] = value
        stop_timeout_s = self.config.drain_timeout_s + STOP_MARGIN_S
        if name == PROXY:  # it may have workers to wait for
            stop_timeout_s += self.config.drain_notice_s + STOP_MARGIN_S
        return SupervisedProcess(name, arguments, environment, self._show_line, stop_timeout_s)

    def _show_line(self, name: str, line: str) -> None:
        self.show(_beside(name, line))

    def _proxy_arguments(self) -> Sequence[str]:
        """The proxy keeps the ports it first got over a restart."""
        config = self.config
        told = self.proxy.facts
        port = told["http_address"].rpartition(":")[2] if told else str(config.port)
        discovery = told["discovery_address"].rpartition(":")[2] if told else self._discovery()
        return [
            *(sys.executable, "-m", "proxy", "--port", port, "--discovery-port", discovery),
            *_flag("discovery_host", config.host),
            *_flags(config, PROXY_OPTIONS),
            *_flag("served_model_name", config.served_names),
        ]

    def _discovery(self) -> str:
        wanted, default = self.config.discovery_port, DEFAULT_PORT if self.config.port else 0
        return str(default if wanted is None else wanted)

    def _node(self, role: Role, index: int) -> Sequence[str]:
        config, told = self.config, self.proxy.facts
        assert told is not None
        return [
            *(sys.executable, "-m", f"{role.name.lower()}_node"),
            *_flag("model", config.model),
            *("--port", str(config.http_port(role, index))),
            *("--kv-port", str(config.kv_port(role, index))),
            *_flag("device", config.device_of(role, index)),
            *("--tensor-parallel-size", str(config.ranks_of(role))),
            *("--threads", str(config.threads or self._threads())),
            *("--proxy", told["discovery_address"]),
            *_flag("served_model_name", config.served_names),
            *_flags(config, NODE_OPTIONS),
        ]

    def _threads(self) -> int:
        """The cores that this cluster may use, shared among its engines."""
        nodes = self.config.prefill + self.config.decode
        return max(1, usable_cores() // nodes)


def _say_ready(config: UpConfig, url: str) -> None:
    kinds = f"{config.prefill} prefill, {config.decode} decode"
    name, line = config.served_names[0], example(config)
    _say(f"\npdserve is ready at {url} ({kinds}, model {name})\n\n  curl {url}{line}\n")


def example(config: UpConfig) -> str:
    """A command to copy; without decode nodes it asks for a vector instead of a chat."""
    text, model = "What is a prefill node?", config.served_names[0]
    question = [{"role": "user", "content": text}]
    path, body = "/v1/chat/completions", dict[str, object](model=model, messages=question)
    if not config.decode:
        path, body = "/pooling", {"model": model, "input": text}
    said = quote(msgspec.json.encode(body).decode())
    key = " -H 'Authorization: Bearer KEY'" if config.api_key or config.api_key_file else ""
    trust = f" --cacert {quote(config.ssl_certfile)}" if config.ssl_certfile else ""
    shown = " --cert YOURS" if config.ssl_ca_certs else ""
    return f"{path}{trust}{shown} -H 'Content-Type: application/json'{key} -d {said}"


def _flags(config: UpConfig, names: Sequence[str]) -> list[str]:
    return [word for name in names for word in _flag(name, getattr(config, name))]


def _flag(name: str, value: object) -> list[str]:
    """One word for each value, which may begin like a flag."""
    flag = name.replace("_", "-")
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    if isinstance(value, tuple):
        return [f"--{flag}={one}" for one in value]
    return [f"--{flag}={value}"]
