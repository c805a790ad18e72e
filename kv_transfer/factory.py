"""The one place that knows connectors by name."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

from kv_transfer.blocks.checksums import Checksums
from kv_transfer.blocks.images import IMAGES_BYTES
from kv_transfer.checking import CheckLevel
from kv_transfer.identity import Identity
from kv_transfer.integrity.checksums import BlockChecksums
from kv_transfer.integrity.rank_checksums import RankChecksums
from kv_transfer.layout import KvLayout
from kv_transfer.movers.mover import Mover
from kv_transfer.movers.ranks import RanksMover, agent_name
from kv_transfer.movers.remote import MoverServer, RemoteMover
from kv_transfer.movers.staging import STAGING_BYTES
from kv_transfer.regions import Region
from kv_transfer.side_channel.introduction import Introductions
from kv_transfer.side_channel.poller import Poller
from kv_transfer.side_channel.server import SideChannelServer
from kv_transfer.thread.service import TransferService
from kv_transfer.thread.threaded import Connector

CONNECTORS = ("nixl", "tcp")
SUMMING_BYTES = 2 * IMAGES_BYTES  # images, the addresses of their pieces, and torch's rounding


@dataclass(frozen=True, slots=True)
class KvMemory:
    """The memory to transfer: the fingerprint of its KV, its layout, and its regions.

    `level`: how thoroughly transferred bytes are checked.
    """

    fingerprint: str
    layout: KvLayout
    regions: Sequence[Region]
    level: CheckLevel = CheckLevel.OFF


@dataclass(frozen=True, slots=True)
class KvPort:
    """Where the side channel listens; number 0 means a free port. Peers use `advertise_host`.

    `introductions`: how peers prove who they are; None: their names are trusted. `held`: a
    socket that listens there already (side_channel/port.py); the connector owns it from then
    on.
    """

    host: str
    number: int
    advertise_host: str
    introductions: Introductions | None = None
    held: socket.socket | None = None


def device_bytes(kind: str) -> int:
    """The most that a connector may allocate on each rank's device, besides KV memory.

    It allocates this only when a peer first needs it, so the sizing of KV memory leaves it
    free.
    """
    return STAGING_BYTES + SUMMING_BYTES if kind == "nixl" else 0


def build_connector(
    kind: str,
    engine_id: str,
    memory: KvMemory,
    port: KvPort,
    ranks: Sequence[Connection] = (),
) -> Connector:
    """A connector that is ready to `start`; its side channel is bound.

    `ranks` are connections to the other ranks' processes, each with a `rank_server`; then
    `memory.regions` has one region for each rank, the first of them in this process. Raises
    ValueError for an unknown kind, ImportError if NIXL is not installed.
    """
    own = memory.regions[:1] if ranks else memory.regions
    mover = _mover(kind, engine_id, own, port.host, port.advertise_host)
    others = [RemoteMover.over(rank) for rank in ranks]
    if len(own) == 1:
        mover = RanksMover([mover, *others])
    whose = port.introductions, port.advertise_host, port.held
    reception = SideChannelServer.bind(port.host, port.number, Poller(), *whose)
    facts = memory.fingerprint, memory.layout
    identity = Identity(engine_id, port.advertise_host, reception.port, *facts)
    if own[0].device == "cpu":
        sums: Checksums = BlockChecksums(memory.regions)
    else:  # other ranks' devices cannot be read from here
        ours = _warm(BlockChecksums(own))
        sums = RankChecksums(ours, others) if others else ours
    service = TransferService(
        identity, memory.regions, mover, reception, memory.level, sums=sums
    )
    service.other_ranks = [other.introduced for other in others]
    return Connector.over(service)


def rank_server(
    kind: str, engine_id: str, rank: int, region: Region, hosts: tuple[str, str], to: Connection
) -> MoverServer:
    """A rank's own mover, serving the connector at the other end of `to`; it has said hello
    there.

    `hosts` are the host to listen on and the host that peers use to reach it.
    """
    mover = _mover(kind, agent_name(engine_id, rank), [region], *hosts)
    server = MoverServer(to, mover, region, _warm(BlockChecksums([region])))
    server.introduce()
    return server


def _warm(sums: BlockChecksums) -> BlockChecksums:
    sums.warm()
    return sums


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
