"""One proxy process: alone with its own ports, or a worker beside others with a hub."""

import asyncio
import logging
import socket
import time
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from discovery.address import format_address
from discovery.listener import LOOK_S, Listener
from discovery.ports import listening_at, passive_address
from discovery.registry import Registry
from proxy.config import ProxyConfig
from proxy.workers.api import NODE, NoPeers, PeerWorkers
from proxy.workers.hub_client import HubClient
from proxy.workers.joining import join_hub
from proxy.workers.node_counts import report_node_counts
from proxy.workers.published import registration_handler

BACKLOG = 2048
HUB_SILENT_S = 3.0  # a hub sends a query every 2 s, and nodes expire after 5 s
DIVIDED_LIMITS = (
    *("max_requests_in_flight", "max_tokens_in_flight", "max_queued_requests"),
    *("max_requests_per_key", "max_tokens_per_key", "max_queued_per_key"),
    *("max_requests_per_node", "max_tokens_per_node", "max_queued_per_node"),
    *("max_requests_per_prefill_node", "max_tokens_per_prefill_node"),
)


def worker_limits(config: ProxyConfig) -> ProxyConfig:
    """The settings of each worker: its part of the limits in DIVIDED_LIMITS, rounded up.

    Limits per minute stay whole: workers tell each other what they have used (rates.py).
    """
    limits = {name: getattr(config, name) for name in DIVIDED_LIMITS}
    parts: dict[str, Any] = {
        name: -(-limit // config.workers)
        for name, limit in limits.items()
        if isinstance(limit, int)  # seats are divided node by node (routing/capacity.py)
    }
    return replace(config, **parts)


logger = logging.getLogger(__name__)


class WorkerSettings(msgspec.Struct, frozen=True):
    """What the parent sends to each worker; `discovery` is where nodes register."""

    config: ProxyConfig
    discovery: str


@dataclass(slots=True)
class ProxyProcess:
    """Owns the clients' listening socket and the source of node registrations: its own
    listener, or the hub. `discovery` is the address that nodes register at.
    """

    config: ProxyConfig
    client_socket: socket.socket
    peers: PeerWorkers
    discovery: str
    hub: HubClient | None = None
    worker_id: str = ""
    _listener: Listener | None = None

    @classmethod
    def open(cls, config: ProxyConfig) -> "ProxyProcess":
        """Bind or join before anything is loaded, so that a taken port is reported at once.

        A worker's `config` contains little; the parent sends the rest. Raises OSError.
        """
        if config.worker_of is None:
            return cls(config, bind_client_socket(config), NoPeers(), "")
        name, _, number = config.worker_of.rpartition("/")
        setup = join_hub(name, int(number))
        settings = msgspec.json.decode(setup.settings, type=WorkerSettings)
        config = replace(settings.config, supervisor_fd=config.supervisor_fd)
        hub = HubClient(setup.connection)
        return cls(config, setup.client_socket, hub, settings.discovery, hub, number)

    def open_discovery(self, registry: Registry) -> None:
        """Alone, bind the discovery port; as a worker, apply what the hub sends."""
        if self.hub is None:
            self._listener = bind_discovery(self.config, registry)
            self.discovery = discovery_address(self.config, self._listener)
        else:
            self.peers.update_handlers[NODE] = registration_handler(registry)

    async def feed_registry(self, registry: Registry) -> None:
        """Keep the registry up to date until cancelled."""
        if self._listener is not None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._listener.run())
                if (starter := self.config.supervisor_fd) is not None:
                    tasks.create_task(report_node_counts(starter, registry))
        elif self.hub is not None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.hub.run())
                tasks.create_task(_expire_nodes(NodeExpiry(registry), self.hub))

    def close(self) -> None:
        """Close the sockets."""
        self.client_socket.close()
        if self._listener is not None:
            self._listener.close()


def bind_client_socket(config: ProxyConfig) -> socket.socket:
    """Listen at the port for clients."""
    host, port = config.host, config.port
    family, address = passive_address(host, port, "--host")
    with listening_at(port, "--port"):
        return socket.create_server((address, port), family=family, backlog=BACKLOG)


def socket_address(listening: socket.socket) -> str:
    """Its host and port as an address."""
    host, port = listening.getsockname()[:2]
    return format_address(host, port)


def bind_discovery(config: ProxyConfig, registry: Registry) -> Listener:
    """Listen at the port where nodes register."""
    host, port, key = config.discovery_host, config.discovery_port, cluster_key(config)
    with listening_at(port, "--discovery-port"):
        return Listener.bind(registry, host, port, cluster_key=key)


def cluster_key(config: ProxyConfig) -> bytes | None:
    """The key that registrations are signed with; None: unsigned."""
    return config.cluster_key.encode() if config.cluster_key else None


def discovery_address(config: ProxyConfig, listener: Listener) -> str:
    """The address that nodes register at."""
    return format_address(config.discovery_host, listener.port)


@dataclass(slots=True)
class NodeExpiry:
    """Removes nodes whose heartbeats stopped, unless the hub is silent.

    While it is, no heartbeats can arrive, so known nodes stay, and calls show whether they
    answer.
    """

    registry: Registry
    silent_s: float = HUB_SILENT_S
    _hub_silent: bool = False

    def tick(self, *, hub_heard_at: float, now: float) -> None:
        """Called on a timer; times are `time.monotonic`, in seconds."""
        hub_silent = now - hub_heard_at > self.silent_s
        if hub_silent is not self._hub_silent:
            what = "hangs: nodes stay as they are known" if hub_silent else "speaks again"
            logger.warning("the parent of this worker %s", what)
        if hub_silent or self._hub_silent:
            self.registry.mark_all_heard(now=now)
        else:
            self.registry.expire(now=now)  # the hub logs it
        self._hub_silent = hub_silent


async def _expire_nodes(expiry: NodeExpiry, hub: HubClient) -> None:
    while True:
        await asyncio.sleep(LOOK_S)
        expiry.tick(hub_heard_at=hub.heard_at, now=time.monotonic())
