"""The settings of `pdserve up`, and of commands that call a proxy."""

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from discovery.checks import at_least, is_port, not_empty
from discovery.registration import Role
from node.config import HTTP_PORTS, KV_PORTS, ServingOptions
from node.kv_events.settings import read_kv_events_config
from proxy.config import ProxyOptions

DEMO_MODEL = Path(__file__).parent / "demo" / "model"
DEMO_NAME = "pdserve-demo"
PROXY_PORT = 8000
PROXY_URL = f"http://127.0.0.1:{PROXY_PORT}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpConfig(ServingOptions, ProxyOptions):
    """One proxy, some prefill nodes and some decode nodes."""

    model: str = str(DEMO_MODEL)
    """Folder or hub name of a checkpoint. Default: the small bundled model."""
    prefill: int = 1
    """How many prefill nodes."""
    decode: int = 1
    """How many decode nodes; a model that does not generate needs none."""
    port: int = PROXY_PORT
    """HTTP port of the proxy; 0: every port of the cluster is any free one."""
    discovery_port: int | None = None
    """Where nodes register with the proxy. Default: 30001, or any free one with --port 0."""
    prefill_ports: tuple[int, ...] = ()
    """HTTP ports of the prefill nodes. Default: from 8100 on."""
    decode_ports: tuple[int, ...] = ()
    """HTTP ports of the decode nodes. Default: from 8200 on."""
    prefill_kv_ports: tuple[int, ...] = ()
    """Ports of the prefill nodes' KV side channels. Default: from 21001 on."""
    decode_kv_ports: tuple[int, ...] = ()
    """Ports of the decode nodes' KV side channels. Default: from 22001 on."""
    prefill_devices: tuple[str, ...] = ()
    """A torch device for each prefill node. Default: --device for all."""
    decode_devices: tuple[str, ...] = ()
    """A torch device for each decode node. Default: --device for all."""
    prefill_tensor_parallel_size: int | None = None
    """Processes of each prefill node. Default: --tensor-parallel-size."""
    decode_tensor_parallel_size: int | None = None
    """Processes of each decode node. Default: --tensor-parallel-size."""
    ready_timeout_s: float = 1200.0
    """How long to wait for the whole cluster to be ready."""

    def __post_init__(self) -> None:
        """Refuse inconsistent settings."""
        ServingOptions.__post_init__(self)
        ProxyOptions.__post_init__(self)
        self.check_names(self.served_names)
        at_least(0, "prefill", self.prefill)
        at_least(0, "decode", self.decode)
        if not self.prefill + self.decode:
            raise ValueError("--prefill and --decode must not both be 0")
        at_least(0, "ready_timeout_s", self.ready_timeout_s)
        for role in Role:
            at_least(1, f"{role.name.lower()}_tensor_parallel_size", self.ranks_of(role))
        if any(key.split() != [key] for key in self.api_key):
            raise ValueError("--api-key must not contain spaces")
        for name in ("port", "discovery_port"):
            is_port(name, getattr(self, name) or 0)
        events = read_kv_events_config(self.kv_events_config)
        events.refuse_to_share(self.prefill + self.decode)
        for role in Role:
            for name in ("ports", "kv_ports", "devices"):
                self._one_for_each(role, name)
            for name in ("ports", "kv_ports"):
                self._are_ports(role, name)

    def count(self, role: Role) -> int:
        """How many nodes a role has."""
        return self.prefill if role is Role.PREFILL else self.decode

    def http_port(self, role: Role, index: int) -> int:
        """The port of the node's HTTP door."""
        return self._port(role, index, "ports", HTTP_PORTS[role])

    def kv_port(self, role: Role, index: int) -> int:
        """The port of the node's KV side channel."""
        return self._port(role, index, "kv_ports", KV_PORTS[role])

    def ranks_of(self, role: Role) -> int:
        """How many processes each node of a role has."""
        prefill, decode = self.prefill_tensor_parallel_size, self.decode_tensor_parallel_size
        own = prefill if role is Role.PREFILL else decode
        return self.tensor_parallel_size if own is None else own

    def device_of(self, role: Role, index: int) -> str:
        """The device on which the node computes."""
        devices = self._list(role, "devices")
        return str(devices[index]) if devices else self.device

    @property
    def served_names(self) -> tuple[str, ...]:
        """The names by which clients may call the model."""
        if self.served_model_name:
            return self.served_model_name
        return (DEMO_NAME,) if self.model == str(DEMO_MODEL) else (self.model,)

    def _port(self, role: Role, index: int, name: str, first: int) -> int:
        if ports := self._list(role, name):
            return int(ports[index])
        return first + index if self.port else 0

    def _list(self, role: Role, name: str) -> tuple[int | str, ...]:
        values: tuple[int | str, ...] = getattr(self, f"{role.name.lower()}_{name}")
        return values

    def _are_ports(self, role: Role, name: str) -> None:
        for port in self._list(role, name):
            is_port(f"{role.name.lower()}_{name}", int(port))

    def _one_for_each(self, role: Role, name: str) -> None:
        values, count = self._list(role, name), self.count(role)
        if values and len(values) != count:
            kind = role.name.lower()
            flag = f"--{kind}-{name}".replace("_", "-")
            raise ValueError(f"{flag} has {len(values)} entries for {count} nodes")


@dataclass(frozen=True, kw_only=True)
class ProxyAccess:
    """Which proxy to call, and with which keys."""

    url: str = PROXY_URL
    """Where its proxy is."""
    api_key: tuple[str, ...] = ()
    """A client's key, for a proxy that wants one; the first is used."""
    admin_api_key: str | None = field(default=None, repr=False)
    """An admin's key: in place of that one, and to change roles. Better as ADMIN_API_KEY."""
    client_cert: str | None = None
    """Certificate to show to a proxy that wants one, PEM, with its key unless that is apart."""
    client_key: str | None = None
    """Key of --client-cert."""

    def __post_init__(self) -> None:
        """Refuse an empty key, and an address that is no URL."""
        not_empty(self)
        if not self.url.lower().startswith(("http://", "https://")):
            raise ValueError(f"--url {self.url} has to begin with http:// or https://")
        try:
            urlsplit(self.url).port  # noqa: B018  a number that is too large would be cut
        except ValueError as error:
            raise ValueError(f"--url {self.url}: {error}") from error
        if self.client_key is not None and self.client_cert is None:
            raise ValueError("--client-key goes with --client-cert only")


@dataclass(frozen=True, kw_only=True)
class StatusConfig(ProxyAccess):
    """How a cluster is shown."""

    json: bool = False
    """Print the proxy's answer as it is."""


@dataclass(frozen=True, kw_only=True)
class BalanceConfig(ProxyAccess):
    """When nodes change their roles."""

    window_s: float = 30.0
    """Over how many seconds what waits is averaged before a node changes its role."""
    interval_s: float = 1.0
    """Seconds between two looks."""
    min_prefill: int = 1
    """How many prefill nodes to leave each model."""
    min_decode: int = 1
    """How many decode nodes to leave each model."""
    dry_run: bool = False
    """Only log which node should change its role."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant; raises ValueError, naming the flag."""
        ProxyAccess.__post_init__(self)
        at_least(0.1, "interval_s", self.interval_s)
        at_least(self.interval_s, "window_s", self.window_s)
        at_least(1, "min_prefill", self.min_prefill)
        at_least(1, "min_decode", self.min_decode)
