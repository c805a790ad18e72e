"""How bytes get from one node's memory to another's: in pieces, at any time, or not at all."""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from kv_transfer.errors import PeerUnreachable, TransferCancelled
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.ledger.sources import Address
from kv_transfer.movers.mover import ReadEnd
from kv_transfer.wire import Welcome

PIECES = 2  # of a block: a read may stop in the middle of one


@dataclass(eq=False)
class Host:
    """A node's memory, for as long as its process lives."""

    memory: bytearray
    block_bytes: int
    alive: bool = True


@dataclass(eq=False)
class Reading:
    """A read under way: (their block, our block, piece) still to be copied."""

    order: ReadOrder
    host: Host
    left: deque[tuple[int, int, int]]


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

    def meet(self, address: Address, welcome: Welcome) -> None:
        self.part(address)
        self._met[address] = self.hosts[welcome.cards[0]]

    def part(self, address: Address) -> None:
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
        left = deque(
            (run.theirs + index, run.ours + index, piece)
            for run in order.runs
            for index in range(run.count)
            for piece in range(PIECES)
        )
        self.readings.append(Reading(order, host, left))

    def go_on(self, reading: Reading) -> None:
        """One more piece, as it is now at the other end; or the end of it."""
        if not reading.host.alive:
            self._end(reading, PeerUnreachable("its process is gone"))
            return
        theirs, ours, piece = reading.left.popleft()
        self.may_write(ours)
        size = self.ours.block_bytes // PIECES
        source = theirs * self.ours.block_bytes + piece * size
        target = ours * self.ours.block_bytes + piece * size
        self.ours.memory[target : target + size] = reading.host.memory[source : source + size]
        if not reading.left:
            self._end(reading, None)

    def poll(self) -> Sequence[ReadEnd]:
        ended, self._ended = self._ended, []
        return ended

    def waits_for(self) -> Collection[Address]:
        return ()

    def _end(self, reading: Reading, error: PeerUnreachable | None) -> None:
        self.readings.remove(reading)
        self._ended.append((reading.order.read_id, error))
