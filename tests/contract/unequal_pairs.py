"""A source and a sink of two memories, by every connector, for tests that step both."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing import Pipe

from kv_transfer.api import Arrived, KvSink, KvSource
from kv_transfer.checking import CheckLevel
from kv_transfer.identity import Identity
from kv_transfer.integrity.checksums import BlockChecksums
from kv_transfer.local.connector import LocalSink, LocalSource
from kv_transfer.movers.mover import Mover
from kv_transfer.movers.nixl import NixlMover
from kv_transfer.movers.nixl_staging import StagingPool
from kv_transfer.movers.ranks import RanksMover, agent_name
from kv_transfer.movers.remote import MoverServer, RemoteMover
from kv_transfer.movers.tcp import TcpMover
from kv_transfer.regions import Region
from kv_transfer.side_channel.poller import Poller
from kv_transfer.side_channel.server import SideChannelServer
from kv_transfer.thread.service import TransferService
from kv_transfer.thread.threaded import Connector
from tests.contract.rigs import HERE, TURN_S
from tests.fakes.sharded import Memory

AT = ("source", 1)
LANDED_BYTES = 1 << 13  # at once: some cases take several turns


@dataclass
class Pair:
    """A source and a sink; `step` lets both do one round."""

    source: KvSource
    sink: KvSink
    living: Sequence[TransferService] = ()
    asked: int = 0
    ranks: Sequence[MoverServer] = ()

    def step(self) -> list[Arrived]:
        for one in self.living:
            one.turn(TURN_S)
        for rank in self.ranks:
            rank.turn()
        return list(self.sink.poll())


@contextmanager
def local(theirs: Memory, ours: Memory) -> Iterator[Pair]:
    source = LocalSource("engine", AT, theirs.regions, "same", float, theirs.layout)
    sink = LocalSink({AT: source}, ours.regions, "same", float, layout=ours.layout)
    yield Pair(source, sink)


@contextmanager
def network(
    movers: Sequence[Mover], theirs: Memory, ours: Memory, level: CheckLevel = CheckLevel.OFF
) -> Iterator[Pair]:
    living = list[TransferService]()
    for mover, memory in zip(movers, (theirs, ours), strict=True):
        reception = SideChannelServer.bind(HERE, 0, Poller())
        name = f"engine-{id(memory)}"
        identity = Identity(name, HERE, reception.port, "same", memory.layout)
        service = TransferService(
            identity, memory.regions, mover, reception, level, clock=float
        )
        living.append(service)
    halves = [Connector.over(one) for one in living]
    yield Pair(halves[0].source, halves[1].sink, living)
    for one in living:
        one.end()
        one.close()


@contextmanager
def nixl(theirs: Memory, ours: Memory) -> Iterator[Pair]:
    movers = [NixlMover.start(f"agent-{id(one)}", one.regions) for one in (theirs, ours)]
    with network(movers, theirs, ours) as pair:
        yield pair


@contextmanager
def tcp(theirs: Memory, ours: Memory) -> Iterator[Pair]:
    movers = [TcpMover.start(HERE, HERE, one.regions) for one in (theirs, ours)]
    with network(movers, theirs, ours) as pair:
        yield pair


Start = Callable[[str, Sequence[Region]], Mover]


@contextmanager
def _apart(start: Start, theirs: Memory, ours: Memory) -> Iterator[Pair]:
    """Each rank has an agent of its own, behind a pipe to the first one."""
    movers, servers = list[Mover](), list[list[MoverServer]]()
    for memory in (theirs, ours):
        name, served, others = f"engine-{id(memory)}", list[MoverServer](), list[RemoteMover]()
        for rank, region in enumerate(memory.regions[1:], 1):
            here, there = Pipe()
            mover = start(agent_name(name, rank), [region])
            served.append(MoverServer(there, mover, region, BlockChecksums([region])))
            served[-1].introduce()
            others.append(RemoteMover.over(here))
        movers.append(RanksMover([start(name, memory.regions[:1]), *others]))
        servers.append(served)
    with network(movers, theirs, ours) as pair:
        for service, served in zip(pair.living, servers, strict=True):
            service.other_ranks = [one.introduced for one in served]
        pair.ranks = [one for served in servers for one in served]
        yield pair
    for one in pair.ranks:
        one.mover.close()


def tcp_apart(theirs: Memory, ours: Memory) -> AbstractContextManager[Pair]:
    return _apart(lambda _, regions: TcpMover.start(HERE, HERE, regions), theirs, ours)


def nixl_apart(theirs: Memory, ours: Memory) -> AbstractContextManager[Pair]:
    return _apart(NixlMover.start, theirs, ours)


def _landing(name: str, regions: Sequence[Region]) -> NixlMover:
    """As on a device: where a source's blocks lie in one stretch, they are read as one."""
    mover = NixlMover.start(name, regions)
    mover.landings = StagingPool(mover.agent, "cpu", slot_bytes=LANDED_BYTES)
    return mover


@contextmanager
def nixl_landing(theirs: Memory, ours: Memory) -> Iterator[Pair]:
    movers = [_landing(f"agent-{id(one)}", one.regions) for one in (theirs, ours)]
    with network(movers, theirs, ours) as pair:
        yield pair


def nixl_landing_apart(theirs: Memory, ours: Memory) -> AbstractContextManager[Pair]:
    return _apart(_landing, theirs, ours)


Maker = Callable[[Memory, Memory], AbstractContextManager[Pair]]
MAKERS: list[Maker] = [
    local,
    nixl,
    tcp,
    nixl_apart,
    tcp_apart,
    nixl_landing,
    nixl_landing_apart,
]
