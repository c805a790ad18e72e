"""`pdserve proxy --workers N`: the parent of several proxy processes behind one port.

The parent owns the clients' listening socket, which all workers accept from, so a worker that
dies takes only its own connections with it. The parent receives the nodes' heartbeats and
passes them on to the workers (proxy/workers/hub.py). It serves no client itself, so little in
it can fail; if it ends, its workers end with it, and its supervisor restarts everything.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, field

import msgspec
import uvloop
import zmq
from prometheus_client import generate_latest

from deploy.supervisor import ProcessFailed, SupervisedProcess
from discovery.lifeline import end_with_supervisor, report_to_starter
from discovery.logs import start_logging
from discovery.registry import Registry
from discovery.terminal import handle_hang_ups
from proxy.config import ProxyConfig
from proxy.main import STOP_SIGNALS
from proxy.observing.failure_metrics import RefusedRegistrations
from proxy.observing.metrics import PREFIX
from proxy.routing.layouts import layout_difference
from proxy.workers.hub import Hub
from proxy.workers.joining import HubListener
from proxy.workers.metrics_pages import worker_count_registry
from proxy.workers.node_counts import report_node_counts
from proxy.workers.process import (
    WorkerSettings,
    bind_client_socket,
    bind_discovery,
    discovery_address,
    socket_address,
    worker_limits,
)
from proxy.workers.published import PublishedRegistry
from proxy.workers.shared_state import SharedState

STOP_MARGIN_S = 5.0
VARIABLES = "PDSERVE_"
logger = logging.getLogger(__name__)


def run(config: ProxyConfig) -> None:
    """Serve until a signal to stop; running streams may finish within --drain-timeout-s.

    Raises SystemExit with the reason if that is impossible.
    """
    say = start_logging(config.log_level, lossy=config.supervisor_fd is not None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there are files to reload
    if config.supervisor_fd is not None:
        end_with_supervisor(config.supervisor_fd)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_serve(config, say))
        except (OSError, zmq.ZMQError, ProcessFailed) as error:
            raise SystemExit(f"the proxy ends: {error}") from error


async def _serve(config: ProxyConfig, say: Callable[[str], None]) -> None:
    state = SharedState()
    registry = PublishedRegistry(differ=layout_difference, state=state)
    with (
        closing(bind_client_socket(config)) as client_socket,
        closing(bind_discovery(config, registry)) as listener,
    ):
        addresses = ServiceAddresses(
            socket_address(client_socket), discovery_address(config, listener)
        )
        settings = msgspec.json.encode(
            WorkerSettings(worker_limits(config), addresses.discovery)
        )
        with closing(HubListener.open(client_socket, settings)) as hub_listener:
            parent = WorkerSupervisor(config, hub_listener, state, say, registry)
            async with asyncio.TaskGroup() as tasks:
                hearing = tasks.create_task(listener.run())
                try:
                    await parent.run(addresses)
                finally:
                    hearing.cancel()
    if parent.failure is not None:
        raise parent.failure


@dataclass(frozen=True, slots=True)
class ServiceAddresses:
    """Where clients connect (`clients`), and where nodes register (`discovery`)."""

    clients: str
    discovery: str


@dataclass(slots=True)
class WorkerSupervisor:
    """Keeps all workers running while `run` runs, and has stopped them when it returns."""

    config: ProxyConfig
    hub_listener: HubListener
    state: SharedState
    say: Callable[[str], None]
    registry: Registry
    failure: ProcessFailed | None = None
    hub: Hub = field(init=False)
    workers: Sequence[SupervisedProcess] = field(init=False)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """Name the workers; none runs yet."""
        self.hub = Hub(self.state, self._page)
        self.workers = [self._child(number) for number in range(self.config.workers)]

    async def run(self, addresses: ServiceAddresses) -> None:
        """Run until a signal to stop; a second one ends everything at once."""
        for number in STOP_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._stop_workers)
        handle_hang_ups(self._reread_files, stop=self._stop_workers)
        async with asyncio.TaskGroup() as tasks:
            helpers = [tasks.create_task(self.hub.run())]
            helpers.append(tasks.create_task(self._accept_workers(tasks)))
            helpers += [tasks.create_task(self._keep(worker)) for worker in self.workers]
            helpers.append(tasks.create_task(self._say_ready(addresses)))
            await self._stop.wait()
            await asyncio.gather(*(worker.stop() for worker in self.workers))
            for helper in helpers:
                helper.cancel()

    def _stop_workers(self) -> None:
        if self._stop.is_set():
            for worker in self.workers:
                worker.kill()
        else:
            logger.info("stopping: running streams have %g s", self.config.drain_timeout_s)
        self._stop.set()

    def _reread_files(self) -> None:
        """Have the workers reload files of keys and certificates."""
        for worker in self.workers:
            worker.reread()

    async def _accept_workers(self, tasks: asyncio.TaskGroup) -> None:
        async with aclosing(self.hub_listener.accept_workers()) as workers:
            async for number, connection in workers:
                tasks.create_task(self.hub.serve_worker(number, connection))

    async def _keep(self, worker: SupervisedProcess) -> None:
        """Keep a worker running; one that ends before it was ever ready ends all, since its
        settings cannot work.
        """
        try:
            await worker.run()
        except ProcessFailed as failure:
            self.failure = self.failure or failure
            self._stop.set()

    async def _say_ready(self, addresses: ServiceAddresses) -> None:
        await asyncio.gather(*(worker.ready for worker in self.workers))
        url = f"{'https' if self.config.ssl_certfile else 'http'}://{addresses.clients}"
        logger.info(
            "ready on %s with %d workers (nodes register at %s)",
            *(url, len(self.workers), addresses.discovery),
        )
        if self.config.supervisor_fd is not None:
            fd = self.config.supervisor_fd
            report_to_starter(
                fd, http_address=addresses.clients, discovery_address=addresses.discovery
            )
            await report_node_counts(fd, self.registry, self.hub.up_to_date)

    def _child(self, number: int) -> SupervisedProcess:
        """A worker gets its settings from us, not from our command line or variables."""
        hub_address = f"{self.hub_listener.name}/{number}"
        command = [sys.executable, "-m", "proxy", "--worker-of", hub_address]
        environment = {k: v for k, v in os.environ.items() if not k.startswith(VARIABLES)}
        stop_timeout_s = self.config.drain_notice_s + self.config.drain_timeout_s
        stop_timeout_s += STOP_MARGIN_S
        told = environment, self._show, stop_timeout_s
        return SupervisedProcess(f"worker-{number}", lambda: command, *told)

    def _show(self, name: str, line: str) -> None:
        self.say(f"{name} | {line}")

    def _page(self) -> bytes:
        """The parent's own metrics: workers, and refused messages at the discovery port."""
        metrics = worker_count_registry(lambda: self.hub.workers)
        metrics.register(RefusedRegistrations(self.registry, PREFIX))
        return generate_latest(metrics)
