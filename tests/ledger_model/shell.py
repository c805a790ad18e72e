"""A node's transfer thread without its sockets: its books, and real frames in and out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from kv_transfer.api import Arrived, Settled
from kv_transfer.checking import CheckLevel
from kv_transfer.identity import Identity
from kv_transfer.integrity.checked import CheckedMover
from kv_transfer.integrity.checksums import BlockChecksums
from kv_transfer.ledger.known_sources import Address
from kv_transfer.ledger.offers import OfferBook
from kv_transfer.ledger.pulls import PullBook
from kv_transfer.movers.mover import Mover
from kv_transfer.regions import Region, describe
from kv_transfer.thread.books import Command, CommandQueue, TransferBooks
from kv_transfer.thread.event_queues import EventQueues
from kv_transfer.wire import (
    FromSink,
    FromSource,
    Hello,
    Welcome,
    decode_from_sink,
    decode_from_source,
    encode,
)
from tests.ledger_model.memory import SlowMover
from tests.ledger_model.network import Network

MACHINE = "machine"
Ended = Callable[[Arrived | Settled], None]


class Silent:
    """Nobody waits: who plays says whose turn it is."""

    def ring(self) -> None: ...

    def clear(self) -> None: ...


@dataclass(frozen=True, slots=True)
class WatchedQueues(EventQueues):
    """Says of each end that it has come, before the engine can know of it."""

    ended: Ended = lambda _: None

    def collect_from(self, offers: OfferBook, pulls: PullBook) -> bool:
        for settled in offers.settled:
            self.ended(settled)
        for arrived in pulls.arrived:
            self.ended(arrived)
        return EventQueues.collect_from(self, offers, pulls)


@dataclass(frozen=True, slots=True)
class Frames:
    """What is said, as frames of the network."""

    network: Network
    name: bytes
    address: Address

    def send_to_sink(self, peer: bytes, message: FromSource) -> None:
        self.network.answer(peer, self.address, encode(message))

    def send_to_source(self, address: Address, message: FromSink, now: float) -> None:
        self.network.ask(self.name, address, encode(message))

    def disconnect(self, address: Address) -> None:
        self.network.part(self.name, address)


@dataclass
class Shell:
    """What `threaded.py` needs of a TransferService; each message has a turn of its own."""

    identity: Identity
    regions: Sequence[Region]
    mover: SlowMover
    network: Network
    clock: Callable[[], float]
    ended: Ended
    level: CheckLevel

    def __post_init__(self) -> None:
        me, level, sums = self.identity, self.level, BlockChecksums(self.regions)
        self.name = me.engine_id.encode()
        self.address: Address = (me.host, me.port)
        self.offers = OfferBook(
            self._welcome, me.fingerprint, me.layout, me.engine_id, level=level
        )
        self.pulls = PullBook(Hello(me.fingerprint, me.layout, level))
        self.queues, bell = WatchedQueues(ended=self.ended), Silent()
        self.commands = CommandQueue(bell)
        self.books = TransferBooks(
            self.offers,
            self.pulls,
            CheckedMover(cast("Mover", self.mover), sums),
            Frames(self.network, self.name, self.address),
            sums,
            self.commands,
            self.queues,
            bell,
            self.clock,
        )

    def post(self, command: Command) -> None:
        self.commands.post(command)

    def begin(self, *, away: bool = False) -> None:
        """What comes before any message. `away`: those that came are heard later."""
        self.books.begin_turn(away=away)

    def asked(self, peer: bytes, frame: bytes) -> None:
        """A sink's message has come."""
        self.books.handle_sink_message(peer, decode_from_sink(frame), self.clock())
        self.books.finish_turn(self.clock())

    def answered(self, address: Address, frame: bytes) -> None:
        """A source's message has come."""
        self.books.handle_source_message(address, decode_from_source(frame), self.clock())
        self.books.finish_turn(self.clock())

    def turn(self, *, away: bool = False) -> None:
        """Nothing has come."""
        self.begin(away=away)
        self.books.finish_turn(self.clock())

    def sweep(self) -> None:
        """A turn takes too long: the other thread looks through the books."""
        self.books.sweep()

    def _welcome(self) -> Welcome:
        me, regions = self.identity, tuple(describe(region) for region in self.regions)
        return Welcome(me.engine_id, me.fingerprint, me.layout, regions, (self.name,), MACHINE)
