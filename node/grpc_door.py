"""Whether a node listens for gRPC: that needs the extra `grpc`, which not every node has."""

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Protocol

from api.served import ServedModel
from api.text_files import TextParcel
from discovery.address import format_address
from engine.cache_events import CacheEvent
from node.config import NodeConfig
from node.engine_client import EngineClient
from node.identity import NodeIdentity
from node.legs import LegFinder

NEEDED = "grpc", "grpc_health", "grpc_reflection"
FLAG = "--grpc-port"


class GrpcDoor(Protocol):
    """Listens from its making on, and serves from `start` to `close`."""

    @property
    def port(self) -> int | None:
        """Where it listens; None: nowhere."""

    async def start(
        self,
        engine: EngineClient,
        identity: NodeIdentity,
        served: ServedModel,
        legs: LegFinder,
        kv_event_sources: Mapping[str, Mapping[str, object]],
        parcel: TextParcel | None,
    ) -> None:
        """Serve calls from now on."""

    async def run(self) -> None:
        """Keep what it tells of the engine's health up to date."""

    def publish(self, events: Sequence[CacheEvent]) -> None:
        """Tell subscribers what has happened to the prefix cache."""

    async def stop_taking_calls(self) -> None:
        """Tell callers that this node leaves; calls are served as before."""

    async def close(self) -> None:
        """End the server, and the calls that still run."""


class NoGrpcDoor:
    """See GrpcDoor: a node that does not listen for gRPC."""

    port = None

    async def start(self, *_parts: object) -> None:
        """Nothing."""

    async def run(self) -> None:
        """Nothing."""

    def publish(self, events: Sequence[CacheEvent]) -> None:
        """Nothing."""

    async def stop_taking_calls(self) -> None:
        """Nothing."""

    async def close(self) -> None:
        """Nothing."""


def listen_for_grpc(config: NodeConfig) -> GrpcDoor:
    """Listen at the port that the settings name, if they do; raises OSError.

    To be called before the model is loaded: a port that is taken should be found at once.
    """
    if config.grpc_port is None:
        return NoGrpcDoor()
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise OSError(f"{FLAG} needs the extra grpc, pdserve[grpc]: no {', '.join(missing)}")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # who forks here, executes
    from node.grpc_serving import GrpcNode  # it imports what was looked for

    return GrpcNode.listen(config, format_address(config.host, config.grpc_port))
