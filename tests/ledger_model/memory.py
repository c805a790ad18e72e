"""How bytes get from one node's memory to another's: in pieces, at any time, or not at all."""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kv_transfer.errors import PeerUnreachable, TransferCancelled
from kv_transfer.ledger.known_sources import Address
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.movers.mover import ReadEnd
from kv_transfer.movers.spans import both_sides
from kv_transfer.regions import Region, describe
from kv_transfer.wire import Welcome

PIECES = 2  # of a block: a read may stop in the middle of one
Piece = tuple[int, int, int]
"""Where it begins in their memory and in ours, and its bytes."""


@dataclass(eq=False)
class Host:
    """A node's memory, for as long as its process lives."""

    memory: bytearray
    region: Region
    alive: bool = True


@dataclass(eq=False)
class Reading:
    """A read under way, and what is still to be copied."""

    order: ReadOrder
    host: Host
    left: deque[Piece]


@dataclass
class SlowMover:
    """Reads block by block, as it is told; `may_write` is asked before each piece.

    `cuts`: a peer that was parted from cannot write any more, as with a socket. Otherwise what
    is under way goes on by itself, as with NIXL.
    """

    ours: Host
    hosts: Mapping[bytes, Host]
    may_write: Callable[[int], None]
    cuts: bool
    readings: list[Reading] = field(default_factory=list)
    _met: dict[Address, Host] = field(default_factory=dict)
    _ended: list[ReadEnd] = field(default_factory=list)

    def connect(self, address: Address, welcome: Welcome) -> None:
        self.disconnect(address)
        self._met[address] = self.hosts[welcome.cards[0]]

    def disconnect(self, address: Address) -> None:
        self._met.pop(address, None)
        for one in list(self.readings):
            if self.cuts and one.order.address == address:
                self.readings.remove(one)
                self._ended.append((one.order.read_id, TransferCancelled()))

    def read(self, order: ReadOrder) -> None:
        host = self._met.get(order.address)
        if host is None:
            self._ended.append((order.read_id, PeerUnreachable("never met")))
            return
        left = deque(pieces(order, host.region, self.ours.region))
        self.readings.append(Reading(order, host, left))

    def go_on(self, reading: Reading, *, spoil: bool = False) -> None:
        """One more piece, as it is now at the other end, or nearly; or the end of it."""
        if not reading.host.alive:
            self._end(reading, PeerUnreachable("its process is gone"))
            return
        source, target, size = reading.left.popleft()
        self.may_write(target // self.ours.region.block_bytes)
        self.ours.memory[target : target + size] = reading.host.memory[source : source + size]
        if spoil:
            self.ours.memory[target] ^= 1
        if not reading.left:
            self._end(reading, None)

    def poll(self) -> Sequence[ReadEnd]:
        ended, self._ended = self._ended, []
        return ended

    def stalled_sources(self) -> Collection[Address]:
        return ()

    def _end(self, reading: Reading, error: PeerUnreachable | None) -> None:
        self.readings.remove(reading)
        self._ended.append((reading.order.read_id, error))


def pieces(order: ReadOrder, theirs: Region, ours: Region) -> Iterator[Piece]:
    """In order, and none of them in two of our blocks."""
    most = min(theirs.block_bytes, ours.block_bytes) // PIECES
    for source, target, size in _stretches(order, theirs, ours):
        for start in range(0, size, most):
            yield source + start, target + start, min(most, size - start)


def _stretches(order: ReadOrder, theirs: Region, ours: Region) -> Iterator[Piece]:
    if order.cut.pieces:
        there, here = both_sides(order, [describe(theirs)], [describe(ours)])
        sources, targets = there.address - theirs.address, here.address - ours.address
        yield from zip(sources.tolist(), targets.tolist(), here.size.tolist(), strict=True)
        return
    size = ours.block_bytes
    for run in order.runs:
        yield run.theirs * size, run.ours * size, run.count * size
