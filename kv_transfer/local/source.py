"""The source of the connector inside one process: its books, without a transport."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kv_transfer.api import LoanRequest, Sealed, Settled
from kv_transfer.checking import CheckLevel
from kv_transfer.integrity.checked import make_checksums
from kv_transfer.integrity.checksums import BlockChecksums
from kv_transfer.layout import KvLayout
from kv_transfer.ledger.known_sources import Address
from kv_transfer.ledger.offers import OfferBook
from kv_transfer.regions import Region, describe
from kv_transfer.ticket import KvTicket
from kv_transfer.wire import FromSink, FromSource, Welcome

MACHINE = "local"
Clock = Callable[[], float]


def layout_of(regions: Sequence[Region]) -> KvLayout:
    """A layout of opaque bytes, for regions of unknown meaning."""
    sizes = tuple(region.block_bytes for region in regions)
    return KvLayout("bytes", 1, len(sizes), sizes, len(sizes))


@dataclass
class LocalSource:
    """Serves its own regions to any LocalSink that holds a ticket.

    While it is `asleep` it answers nothing; it handles the messages of that time when it wakes.
    """

    engine_id: str
    address: Address
    regions: Sequence[Region]
    fingerprint: str
    clock: Clock
    layout: KvLayout | None = None
    level: CheckLevel = CheckLevel.OFF

    def __post_init__(self) -> None:
        self.asleep = False
        self._unheard: list[tuple[bytes, FromSink]] = []
        self._layout = self.layout or layout_of(self.regions)
        facts = self.fingerprint, self._layout, self.engine_id, self.level
        self.book = OfferBook(self._welcome, *facts)
        self._sums = BlockChecksums(self.regions)

    def offer(self, request_id: str, outer_id: str | None = None) -> KvTicket:
        """Open a lease; the engine id makes ticket ids unique across restarts."""
        ticket_id = f"{self.engine_id}/{request_id}"
        self.book.offer(ticket_id, outer_id)
        return KvTicket(ticket_id, self.engine_id, *self.address, self.fingerprint)

    def extend(self, ticket_id: str, blocks: Sequence[int]) -> None:
        """The sink is told at its next Look."""
        self.book.extend(ticket_id, blocks)
        self._make_sums()

    def seal(self, ticket_id: str, sealed: Sealed) -> None:
        """The sink is told at its next Look."""
        self.book.seal(ticket_id, sealed, now=self.clock())
        self._make_sums()

    def withdraw(self, ticket_id: str) -> None:
        """Settle at once."""
        self.book.withdraw(ticket_id)

    def loan_requests(self) -> Sequence[LoanRequest]:
        """Loan requests since the last call."""
        news, self.book.loan_requests = self.book.loan_requests, []
        return news

    def lend(self, asked: LoanRequest, name: str, blocks: Sequence[int], sealed: Sealed) -> str:
        """The sink is told at its next poll."""
        ticket_id = f"{self.engine_id}/{name}"
        self.book.lend(asked, ticket_id, blocks, sealed, now=self.clock())
        self._make_sums()
        return ticket_id

    def decline(self, asked: LoanRequest) -> None:
        """The sink is told at its next poll."""
        self.book.decline(asked)

    def poll(self) -> Sequence[Settled]:
        """Handle messages that came during sleep, expire leases, then return what settled."""
        self._wake_up()
        self.book.expire(self.clock())
        news, self.book.settled = self.book.settled, []
        return news

    def close(self) -> None:
        """Withdraw every open offer."""
        self.book.withdraw_all()

    def deliver(self, peer: bytes, message: FromSink) -> list[FromSource]:
        """Called by a sink: handle its message and return the answers."""
        if self.asleep:
            self._unheard.append((peer, message))
            return []
        self._wake_up()
        self.book.handle_message(peer, message, now=self.clock())
        if self._make_sums():
            self.book.flush()
        return self.take_messages(peer)

    def take_messages(self, peer: bytes) -> list[FromSource]:
        """Messages for a sink that has sent nothing."""
        if self.asleep:
            return []
        sent = self.book.outbox
        self.book.outbox = [one for one in sent if one[0] != peer]
        return [answer for to, answer in sent if to == peer]

    def _make_sums(self) -> bool:
        """Compute missing checksums; returns whether there were any."""
        most, made = sum(region.num_blocks for region in self.regions), False
        while orders := self.book.missing_checksums(most):  # those of KV, then of its state
            for order in orders:
                self.book.add_checksums(order, make_checksums(self._sums, order))
            made = True
        return made

    def _wake_up(self) -> None:
        unheard, self._unheard = self._unheard, []
        for peer, message in unheard:
            self.book.handle_message(peer, message, now=self.clock())

    def _welcome(self) -> Welcome:
        regions = tuple(describe(region) for region in self.regions)
        return Welcome(self.engine_id, self.fingerprint, self._layout, regions, (), MACHINE)
