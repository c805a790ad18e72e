"""A node's transfer thread without its sockets: both books, and real frames in and out."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kv_transfer.api import Arrived, Settled
from kv_transfer.identity import Identity
from kv_transfer.ledger.offers import OfferBook
from kv_transfer.ledger.pulls import PullBook
from kv_transfer.ledger.sources import Address
from kv_transfer.regions import Region, describe
from kv_transfer.thread.news import NewsQueues
from kv_transfer.thread.service import Command
from kv_transfer.wire import Hello, Welcome, decode_from_sink, decode_from_source, encode
from tests.ledger_model.memory import SlowMover
from tests.ledger_model.network import Network

MACHINE = "machine"


@dataclass
class Shell:
    """What `threaded.py` needs of a TransferService; its turns are in the same order."""

    identity: Identity
    regions: Sequence[Region]
    mover: SlowMover
    network: Network
    clock: Callable[[], float]
    commands: deque[Command] = field(default_factory=deque)
    queues: NewsQueues = field(default_factory=NewsQueues)
    ended: Callable[[Arrived | Settled], None] = lambda _: None

    def __post_init__(self) -> None:
        me = self.identity
        self.name = me.engine_id.encode()
        self.address: Address = (me.host, me.port)
        self.offers = OfferBook(self._welcome, me.fingerprint, me.layout, me.engine_id)
        self.pulls = PullBook(Hello(me.fingerprint, me.layout))

    def post(self, command: Command) -> None:
        self.commands.append(command)

    def begin_turn(self) -> None:
        """What comes before any message."""
        self._part(self.clock())
        self._run_commands()

    def asked(self, peer: bytes, frame: bytes) -> None:
        """A sink's message has come."""
        self.offers.heard(peer, decode_from_sink(frame), now=self.clock())
        self.end_turn()

    def answered(self, address: Address, frame: bytes) -> None:
        """A source's message has come."""
        message = decode_from_source(frame)
        if isinstance(message, Welcome) and not self.pulls.knows(address, message):
            self.mover.meet(address, message)
        self.pulls.heard(address, message, now=self.clock())
        self.end_turn()

    def turn(self) -> None:
        """Nothing has come."""
        self.begin_turn()
        self.end_turn()

    def returned(self) -> None:
        """It was away, and notices; what came meanwhile is not heard yet."""
        self.begin_turn()
        self.offers.returned(self.clock())
        self.pulls.returned(self.clock())
        self.end_turn()

    def _run_commands(self) -> None:
        while self.commands:
            self.commands.popleft()()

    def sweep(self) -> None:
        """A turn takes too long: the other thread looks through the books."""
        self._run_commands()
        self.offers.expire(self.clock())
        self.pulls.give_up(self.clock())
        self._report()

    def end_turn(self) -> None:
        """What follows from what has come."""
        now = self.clock()
        self.offers.flush()
        self._answer(now)
        self._read_mover(now)
        self.offers.expire(now)
        self.pulls.tick(now)
        self._part(now)
        self.offers.flush()
        self._answer(now)

    def _part(self, now: float) -> None:
        while self.pulls.parted:
            address = self.pulls.parted.pop()
            self.mover.part(address)
            self.network.part(self.name, address)
            self._read_mover(now)

    def _answer(self, now: float) -> None:
        self._send()
        orders, self.pulls.orders = self.pulls.orders, []
        for order in orders:
            self.mover.read(order)
        self._read_mover(now)
        self._send()
        self._report()

    def _read_mover(self, now: float) -> None:
        for read_id, error in self.mover.poll():
            self.pulls.read_done(read_id, error, now=now)

    def _send(self) -> None:
        for peer, answer in self.offers.outbox:
            self.network.answer(peer, self.address, encode(answer))
        for address, message in self.pulls.outbox:
            self.network.ask(self.name, address, encode(message))
        self.offers.outbox.clear()
        self.pulls.outbox.clear()

    def _report(self) -> None:
        for settled in self.offers.settled:
            self.ended(settled)
        for arrived in self.pulls.arrived:
            self.ended(arrived)
        self.queues.take(self.offers, self.pulls)

    def _welcome(self) -> Welcome:
        me, regions = self.identity, tuple(describe(region) for region in self.regions)
        return Welcome(me.engine_id, me.fingerprint, me.layout, regions, (self.name,), MACHINE)
