"""The one place that knows connectors by name."""

from collections.abc import Sequence
from dataclasses import dataclass

from kv_transfer.checking import Level
from kv_transfer.identity import Identity
from kv_transfer.layout import KvLayout
from kv_transfer.movers.mover import Mover
from kv_transfer.regions import Region
from kv_transfer.side_channel.connections import Reception
from kv_transfer.side_channel.waiting import Waiting
from kv_transfer.thread.service import TransferService
from kv_transfer.thread.threaded import Connector

CONNECTORS = ("nixl", "tcp")


@dataclass(frozen=True, slots=True)
class KvMemory:
    """What is to be moved: whose KV it is, how it lies, and where.

    `level`: how carefully bytes are looked at on their way.
    """

    fingerprint: str
    layout: KvLayout
    regions: Sequence[Region]
    level: Level = Level.OFF


def build_connector(
    kind: str, engine_id: str, memory: KvMemory, *, bind: tuple[str, int], advertise_host: str
) -> Connector:
    """A connector that is ready to `start`; its side channel is bound, to a free port for 0.

    Raises ValueError for an unknown kind, ImportError where NIXL is not installed.
    """
    mover = _mover(kind, engine_id, memory.regions, bind[0], advertise_host)
    reception = Reception.bind(*bind, Waiting())
    facts = memory.fingerprint, memory.layout
    identity = Identity(engine_id, advertise_host, reception.port, *facts)
    service = TransferService(identity, memory.regions, mover, reception, memory.level)
    return Connector.over(service)


def _mover(
    kind: str, engine_id: str, regions: Sequence[Region], bind_host: str, advertise_host: str
) -> Mover:
    if kind == "nixl":
        from kv_transfer.movers.nixl import NixlMover  # only where it is installed

        return NixlMover.start(engine_id, regions)
    if kind == "tcp":
        from kv_transfer.movers.tcp import TcpMover

        return TcpMover.start(bind_host, advertise_host, regions)
    raise ValueError(f"connector {kind} is not one of {', '.join(CONNECTORS)}")
