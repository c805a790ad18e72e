"""Where a proxy process stands: alone, with ports of its own, or as one of several workers."""

import asyncio
import logging
import socket
import time
from dataclasses import dataclass, replace

import msgspec

from discovery.address import format_address
from discovery.listener import LOOK_S, Listener
from discovery.ports import listening_at
from discovery.registry import Registry
from proxy.config import ProxyConfig
from proxy.workers.api import NODE, Alone, Siblings
from proxy.workers.entrance import come_in
from proxy.workers.link import Link
from proxy.workers.published import adopting
from proxy.workers.starter import tell_of_nodes

BACKLOG = 2048
SILENT_S = 3.0  # a hub asks something every 2 s, and nodes are forgotten after 5 s
DIVIDED = (
    *("max_requests_in_flight", "max_tokens_in_flight", "max_queued_requests"),
    *("max_requests_per_key", "max_tokens_per_key", "max_queued_per_key"),
    *("max_requests_per_node", "max_tokens_per_node", "max_queued_per_node"),
    *("max_requests_per_prefill_node", "max_tokens_per_prefill_node"),
)


def share(config: ProxyConfig) -> ProxyConfig:
    """What each worker may let in: its part of all limits, rounded up.

    But for those of a minute, of which each knows what the others have taken.
    """
    limits = {name: getattr(config, name) for name in DIVIDED}
    parts = {
        name: -(-limit // config.workers) for name, limit in limits.items() if limit is not None
    }
    return replace(config, **parts)


logger = logging.getLogger(__name__)


class WorkerSettings(msgspec.Struct, frozen=True):
    """What the parent gives each worker."""

    config: ProxyConfig
    discovery: str


@dataclass(slots=True)
class Place:
    """Owns the door that clients come to, and what nodes are heard by once `hear` was called.

    `discovery` is where nodes register.
    """

    config: ProxyConfig
    door: socket.socket
    siblings: Siblings
    discovery: str
    link: Link | None = None
    number: str = ""
    _listener: Listener | None = None

    @classmethod
    def find(cls, config: ProxyConfig) -> "Place":
        """Before anything is loaded, so that a port that is taken is known at once.

        `config` of a worker says little; the whole comes from the parent. Raises OSError.
        """
        if config.worker_of is None:
            return cls(config, bind_door(config), Alone(), "")
        name, _, number = config.worker_of.rpartition("/")
        welcome = come_in(name, int(number))
        said = msgspec.json.decode(welcome.settings, type=WorkerSettings)
        settings = replace(said.config, supervisor_fd=config.supervisor_fd)
        link = Link(welcome.connection)
        return cls(settings, welcome.door, link, said.discovery, link, number)

    def listen(self, registry: Registry) -> None:
        """Alone: take the port of discovery. Beside others: what they hear is heard here."""
        if self.link is None:
            self._listener = listener_of(self.config, registry)
            self.discovery = discovery_address(self.config, self._listener)
        else:
            self.siblings.adopts[NODE] = adopting(registry)

    async def hear(self, registry: Registry) -> None:
        """Feed the registry until cancelled."""
        if self._listener is not None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._listener.run())
                if (starter := self.config.supervisor_fd) is not None:
                    tasks.create_task(tell_of_nodes(starter, registry))
        elif self.link is not None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.link.run())
                tasks.create_task(_forget(Forgetting(registry), self.link))

    def close(self) -> None:
        """Give back all that is ours."""
        self.door.close()
        if self._listener is not None:
            self._listener.close()


def bind_door(config: ProxyConfig) -> socket.socket:
    """The port that clients come to."""
    host, port = config.host, config.port
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    with listening_at(port, "--port"):
        return socket.create_server((str(address[0]), port), family=family, backlog=BACKLOG)


def door_address(door: socket.socket) -> str:
    """Where it is."""
    host, port = door.getsockname()[:2]
    return format_address(host, port)


def listener_of(config: ProxyConfig, registry: Registry) -> Listener:
    """The port that nodes come to."""
    host, port, key = config.discovery_host, config.discovery_port, cluster_key(config)
    with listening_at(port, "--discovery-port"):
        return Listener.bind(registry, host, port, cluster_key=key)


def cluster_key(config: ProxyConfig) -> bytes | None:
    """What registrations are signed with."""
    return config.cluster_key.encode() if config.cluster_key else None


def discovery_address(config: ProxyConfig, listener: Listener) -> str:
    """Where nodes register."""
    return format_address(config.discovery_host, listener.port)


@dataclass(slots=True)
class Forgetting:
    """Nodes that are silent are forgotten, unless it is the hub that is silent: who passes on
    nothing says nothing of nodes. Then those that are known stay, and calls show how they are.
    """

    registry: Registry
    silent_s: float = SILENT_S
    _alone: bool = False

    def look(self, *, hub_heard_at: float, now: float) -> None:
        """To be called on a timer."""
        alone = now - hub_heard_at > self.silent_s
        if alone is not self._alone:
            said = "hangs: nodes stay as they are known" if alone else "speaks again"
            logger.warning("the parent of this worker %s", said)
        if alone or self._alone:
            self.registry.excuse(now=now)
        else:
            self.registry.expire(now=now)  # the hub has a line of the log for it
        self._alone = alone


async def _forget(forgetting: Forgetting, link: Link) -> None:
    while True:
        await asyncio.sleep(LOOK_S)
        forgetting.look(hub_heard_at=link.heard_at, now=time.monotonic())
