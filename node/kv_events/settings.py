"""The setting --kv-events-config: JSON with vLLM's keys."""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engine.cache_events import CacheEvent, Medium

FLAG = "--kv-events-config"
TCP, FILE = "tcp://", "ipc://"
PORT = 5557
Steps = Annotated[int, Meta(ge=1, le=2**31 - 2)]  # ZMQ counts in 32 bits


class KvEventsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a node publishes its cache events, and how; by default it does not.

    `endpoint` is bound, to be subscribed to, if it contains `*` or `::` or is a file (ipc);
    otherwise it is a subscriber's that is connected to. None: port 5557 at the node's own host
    is bound. `replay_endpoint`, always bound, is where the last `buffer_steps` batches can be
    asked for again; None: nowhere. `hwm` is how many batches wait for a slow subscriber; more
    are lost to it. `encoding` is that of an event: a `map` as vLLM's from 0.24 on, or an
    `array` as before. With `lower_tiers` blocks in host memory and on disk are told, too.
    `max_queue_size` is accepted, and unused: there is no queue before the socket.
    """

    enable_kv_cache_events: bool = False
    publisher: Literal["zmq", "null"] = "zmq"
    endpoint: str | None = None
    replay_endpoint: str | None = None
    buffer_steps: Steps = 10_000
    hwm: Steps = 100_000
    max_queue_size: Steps = 100_000
    topic: str = ""
    encoding: Literal["map", "array"] = "map"
    lower_tiers: bool = True

    def __post_init__(self) -> None:
        """Raises ValueError for an endpoint that is none."""
        for endpoint in (self.endpoint, self.replay_endpoint):
            if endpoint is not None and not endpoint.startswith((TCP, FILE)):
                raise ValueError(f"endpoint {endpoint!r} begins with neither tcp:// nor ipc://")

    @property
    def on(self) -> bool:
        """Whether anything is published."""
        return self.enable_kv_cache_events and self.publisher == "zmq"

    def told(self, events: Sequence[CacheEvent]) -> Sequence[CacheEvent]:
        """Those that subscribers are told of."""
        if self.lower_tiers:
            return events
        return [one for one in events if one.medium is Medium.KV_MEMORY]

    def refuse_to_share(self, nodes: int) -> None:
        """Raises ValueError if so many nodes of one machine cannot all have these settings."""
        first = self.endpoint or f"{TCP}*:{PORT}"
        for endpoint in (first if is_bound(first) else None, self.replay_endpoint):
            if self.on and nodes > 1 and endpoint and not endpoint.endswith(":*"):
                hint = "tcp://127.0.0.1:* gives each a port of its own"
                raise ValueError(f"{FLAG}: {nodes} nodes cannot share {endpoint}; {hint}")


def is_bound(endpoint: str) -> bool:
    """Whether others connect to this endpoint, as in vLLM."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(FILE)


def read_kv_events_config(text: str | None) -> KvEventsConfig:
    """Parse the JSON; raises a ValueError that names the setting and the field."""
    try:
        return msgspec.json.decode(text or "{}", type=KvEventsConfig)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{FLAG}: {error}") from error
