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
SUMMING_BYTES = 2 * IMAGES_BYTES  # images, their pieces' addresses, and what torch rounds up


@dataclass(frozen=True, slots=True)
class KvMemory:
    """What is to be moved: whose KV it is, how it lies, and where.

    `level`: how carefully bytes are looked at on their way.
    """

    fingerprint: str
    layout: KvLayout
    regions: Sequence[Region]
    level: CheckLevel = CheckLevel.OFF


@dataclass(frozen=True, slots=True)
class KvPort:
    """Where the side channel is: at a free port for 0, which others reach at `advertise_host`.

    `introductions`: how who comes says who it is, if not by its name alone. `held`: listens
    there already (side_channel/port.py), and is the connector's from then on.
    """

    host: str
    number: int
    advertise_host: str
    introductions: Introductions | None = None
    held: socket.socket | None = None


def device_bytes(kind: str) -> int:
    """What a connector may come to take of each rank's device, beside KV memory.

    Not before a peer asks for it: who sizes KV memory leaves it free.
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

    `ranks` lead to the other ranks' processes, each with a `rank_server`; the memory's regions
    are then one for each rank, the first of them in this process. Raises ValueError for an
    unknown kind, ImportError where NIXL is not installed.
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
    else:  # others' devices are not to be seen from here
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
    """A rank's own mover, for the connector at the other end of `to`; introduced to it.

    `hosts` are where to listen, and where others reach us.
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
