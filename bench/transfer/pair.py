"""The sink process of the transfer benchmark, and its link to the source process."""

import multiprocessing
import select
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection

import msgspec

from bench.transfer.figures import Stages
from bench.transfer.memory import Memory
from bench.transfer.raw import PlainSocket, RawNixl
from bench.transfer.source import (
    HERE,
    KINDS,
    CopyOn,
    Drive,
    End,
    Kind,
    Offer,
    Offered,
    Ready,
    Send,
    connect,
    serve,
)
from kv_transfer.checking import CheckLevel
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.movers.mover import ReadEnd, ReaderWrapper
from kv_transfer.thread.threaded import Connector

Blocks = Sequence[Sequence[int]]


@dataclass(slots=True)
class TimedReader(ReaderWrapper):
    """A reader that records when its first read was ordered and when its last one ended."""

    ordered: float = 0.0
    read_at: float = 0.0

    def read(self, order: ReadOrder) -> None:
        """See ReaderWrapper; records the time."""
        self.ordered = self.ordered or time.perf_counter()
        self.mover.read(order)

    def poll(self) -> Sequence[ReadEnd]:
        """See ReaderWrapper; records the time if a read has ended."""
        ended = self.mover.poll()
        if ended:
            self.read_at = time.perf_counter()
        return ended


@dataclass(slots=True)
class TransferPair:
    """The sink's side, and a pipe to the source's."""

    memory: Memory
    pipe: Connection
    raw: RawNixl
    plain: PlainSocket
    connectors: Mapping[Kind, Connector]
    watched: Mapping[Kind, TimedReader]
    _numbers: "count[int]"
    _pulled_at: float = 0.0

    def hand_over(self, kind: Kind, theirs: Sequence[int], ours: Sequence[int]) -> Stages:
        """One whole hand-over, offered there and arrived here."""
        watch = self.watched[kind]
        watch.ordered = 0.0
        self._ask(kind, theirs)
        offered = self._pull(kind, ours)
        self._arrive(kind, 1)
        now = time.perf_counter()
        return Stages(offered, self._pulled_at, watch.ordered, watch.read_at, now)

    def stream(self, kind: Kind, theirs: Blocks, ours: Blocks) -> float:
        """Seconds per hand-over, with several under way at once."""
        since = time.perf_counter()
        for some in theirs:
            self._ask(kind, some)
        for some in ours:
            self._pull(kind, some)
        self._arrive(kind, len(ours))
        return (time.perf_counter() - since) / len(ours)

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Within this context the other process copies memory, and nothing is transferred."""
        self.pipe.send(CopyOn())
        yield
        self.pipe.send(Send(0))

    def _ask(self, kind: Kind, blocks: Sequence[int]) -> None:
        self.pipe.send(Offer(kind, str(next(self._numbers)), tuple(blocks)))

    def _pull(self, kind: Kind, into: Sequence[int]) -> float:
        """Pull the next offer; returns the time of the offer."""
        offered = msgspec.json.decode(self.pipe.recv_bytes(), type=Offered)
        self._pulled_at = time.perf_counter()
        self.connectors[kind].sink.pull(offered.ticket, into)
        return offered.at

    def _arrive(self, kind: Kind, number: int) -> None:
        sink, service = self.connectors[kind].sink, self.connectors[kind].service
        while number:
            select.select([service.news_fd], [], [])
            service.clear_news()
            for arrived in sink.poll():
                number -= 1
                if arrived.error is not None:
                    raise arrived.error

    def read_raw(self, theirs: Sequence[int], ours: Sequence[int]) -> float:
        """Seconds for the same bytes by raw NIXL."""
        if self.raw.driven:
            self.drive()
        return self.raw.read(theirs, ours, self.drive)

    def drive(self) -> None:
        """Let the other side poll its raw agent until its next message."""
        self.pipe.send(Drive())

    def receive(self, num_bytes: int) -> float:
        """Seconds for as many bytes by a plain socket."""
        since = time.perf_counter()
        self.pipe.send(Send(num_bytes))
        self.plain.receive(num_bytes)
        return time.perf_counter() - since


@contextmanager
def open_pair(
    num_bytes: int, block_bytes: int, level: CheckLevel = CheckLevel.OFF
) -> Iterator[TransferPair]:
    """Start the other process; at the end it must have counted every hand-over as delivered."""
    spawned, (ours, theirs) = multiprocessing.get_context("spawn"), multiprocessing.Pipe()
    with socket.create_server((HERE, 0)) as listener:
        settings = theirs, (num_bytes, block_bytes, level), listener.getsockname()[1]
        process = spawned.Process(target=serve, args=settings, daemon=True)
        process.start()
        plain, _ = listener.accept()
    memory, numbers = Memory(num_bytes, block_bytes, level), count()
    ready = ours.recv()
    assert isinstance(ready, Ready)
    raw = RawNixl.open("raw-sink", memory)
    connectors = {kind: connect(kind, f"sink-{kind}", memory) for kind in KINDS}
    watched = {kind: TimedReader(one.service.books.mover) for kind, one in connectors.items()}
    for kind, connector in connectors.items():
        connector.service.books.mover = watched[kind]
        connector.start()
    ours.send(Drive())
    raw.meet(ready.card, ready.address)
    raw.read([0], [0], lambda: ours.send(Drive()))
    yield TransferPair(
        memory, ours, raw, PlainSocket(plain, memory), connectors, watched, numbers
    )
    ours.send(End())
    delivered, asked = ours.recv(), next(numbers)
    assert delivered == asked, f"{delivered} of {asked} hand-overs were delivered"
    raw.close()
    for connector in connectors.values():
        connector.stop()
    process.join()
