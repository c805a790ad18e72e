"""The source's books: what is on offer, to whom, and until when. Pure: time is an argument.

state.py draws the states of one offer; this file decides which sink has it, and until when. A
sink that first sends a Look for a ticket that another sink has takes the ticket over: the other
one may have died, and cannot get it back. A sink may also Leave a ticket, as if it had never
looked. A pull that was told Gone, or has said its last word, is over: what it sent earlier may
still come, and is not taken for a word on another offer that has the name now. A sink's copy
counts only if its Settle meets an open lease of its own, so it can never use a stale byte.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field

from kv_transfer.api import LoanRequest, Outcome, Sealed, Settled
from kv_transfer.checking import CheckLevel
from kv_transfer.layout import KvLayout
from kv_transfer.ledger.ended_pulls import EndedPulls, OfPull
from kv_transfer.ledger.known_sinks import KnownSinks, Peer
from kv_transfer.ledger.leases import LeaseTable
from kv_transfer.ledger.offer import KvOffer
from kv_transfer.ledger.open_offers import ChecksumOrder, OpenOffers
from kv_transfer.ledger.state import HandOverState
from kv_transfer.ticket import LEASE_S
from kv_transfer.wire import (
    DRIVEN_S,
    GIVEN_BACK,
    SILENCE_S,
    Abandon,
    Ask,
    Confirmed,
    Drive,
    FromSink,
    FromSource,
    Gone,
    Hello,
    Leave,
    Lent,
    Look,
    Refused,
    Settle,
    Stranger,
    Welcome,
)

ANOTHER, LEASE_OVER = "another sink has asked for it", "the lease is over"
MOST_REMEMBERED = 256


@dataclass(slots=True)
class OfferBook:
    """Every offer from `offer` to its one Settled; messages to send are left in `outbox`.

    `welcome` describes our memory to a sink that fits. Blocks have checksums of at least
    `level`, computed as soon as they are final (`missing_checksums`, `add_checksums`).
    """

    welcome: Callable[[], Welcome]
    fingerprint: InitVar[str]
    layout: InitVar[KvLayout]
    engine_id: str
    level: CheckLevel = CheckLevel.OFF
    known_sinks: KnownSinks = field(init=False)
    outbox: list[tuple[Peer, FromSource]] = field(default_factory=list)
    settled: list[Settled] = field(default_factory=list)
    loan_requests: list[LoanRequest] = field(default_factory=list)
    _offers: OpenOffers = field(default_factory=OpenOffers)
    _leases: LeaseTable = field(default_factory=LeaseTable)
    _ended: EndedPulls = field(default_factory=EndedPulls)
    _driven_until: float = -math.inf
    _withdrawn: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_REMEMBERED))
    """The last tickets that were withdrawn: a sink that asks late is told why."""

    def __post_init__(self, fingerprint: str, layout: KvLayout) -> None:
        self.known_sinks = KnownSinks(fingerprint, layout)

    def offer(self, ticket_id: str, outer_id: str | None) -> None:
        """Open a lease without a deadline."""
        self._leases.open(ticket_id)
        older = self._offers.add(KvOffer(ticket_id, outer_id, level=self.level))
        if older is not None:
            self._take_name(older)

    def extend(self, ticket_id: str, blocks: Sequence[int]) -> None:
        """Add final blocks; the sink is told at the next `flush`."""
        if offer := self._offers.get(ticket_id):
            offer.extend(blocks)
            self._offers.note_change(offer)

    def seal(self, ticket_id: str, sealed: Sealed, *, now: float) -> None:
        """Complete the offer; if no sink has come yet, one has LEASE_S from now."""
        if offer := self._offers.get(ticket_id):
            offer.seal(sealed)
            self._offers.note_change(offer)
            if offer.sink is None:
                self._leases.renew(ticket_id, until=now + LEASE_S)

    def lend(
        self,
        asked: LoanRequest,
        ticket_id: str,
        blocks: Sequence[int],
        sealed: Sealed,
        *,
        now: float,
    ) -> None:
        """A sealed offer to the sink that asked; it must come within SILENCE_S."""
        self.offer(ticket_id, None)
        self.extend(ticket_id, blocks)
        self.seal(ticket_id, sealed, now=now)
        self._leases.renew(ticket_id, until=now + SILENCE_S)
        self.outbox.append((asked.peer, Lent(asked.name, ticket_id, len(blocks))))

    def decline(self, asked: LoanRequest) -> None:
        """Tell the sink that nothing is lent."""
        self.outbox.append((asked.peer, Lent(asked.name)))

    def withdraw(self, ticket_id: str) -> None:
        """Settle at once: what a sink copies from now on is void."""
        self._end(ticket_id, Outcome.WITHDRAWN)

    def withdraw_all(self) -> None:
        """End every offer."""
        for ticket_id in self._offers.ticket_ids:
            self.withdraw(ticket_id)

    def expire(self, now: float) -> None:
        """End offers whose lease has expired; call it often, since the book has no timer."""
        for ticket_id in self._leases.expire(now):
            self._close(ticket_id, Outcome.EXPIRED)

    def expire_unsealed(self, reason: str) -> None:
        """End the offers that a sink waits for and that may never be complete."""
        for ticket_id in self._offers.ticket_ids:
            offer = self._offers.get(ticket_id)
            if offer and offer.sink is not None and offer.sealed is None:
                self._tell_sink(offer, reason)
                self._end(ticket_id, Outcome.EXPIRED, tell=False)

    def extend_leases(self, now: float) -> None:
        """Extend leases after the thread stalled: a Look sent meanwhile may still be unread."""
        self._leases.grant(now + SILENCE_S)

    @property
    def wants_checksums(self) -> bool:
        """Whether there are `missing_checksums`."""
        return self._offers.want_checksums

    def missing_checksums(self, most: int) -> list[ChecksumOrder]:
        """Blocks that need checksums: `most` in all, shared out, but at least one per offer."""
        return self._offers.missing_checksums(most)

    def add_checksums(self, order: ChecksumOrder, sums: Sequence[int]) -> None:
        """Store the checksums of an order."""
        if offer := self._offers.get(order.ticket_id):
            offer.add_checksums((order.level, order.seen), order.start, sums)
            self._offers.note_change(offer)

    def flush(self) -> None:
        """Tell every sink what is new since it was last told."""
        for offer in self._offers.take_news():
            assert offer.sink is not None
            self.outbox.append((offer.sink, offer.next_news()))

    def handle_message(self, peer: Peer, message: FromSink, *, now: float) -> None:
        """Handle one message of a sink; answers go to `outbox`."""
        match message:
            case Hello():
                self._greet(peer, message)
            case Look() | Settle() | Abandon() | Leave():
                self._handle_pull(peer, message, now)
            case Drive() if self.known_sinks.touch(peer):
                self._driven_until = now + DRIVEN_S
            case Ask():
                self._ask(peer, message)

    @property
    def num_open(self) -> int:
        """Offers that have not settled."""
        return len(self._offers)

    def needs_driving(self, now: float) -> bool:
        """Whether a sink said recently that its reads need our agent to be polled."""
        return now < self._driven_until

    def _greet(self, peer: Peer, hello: Hello) -> None:
        reason = self.known_sinks.admit(peer, hello)
        self.outbox.append((peer, Refused(reason) if reason else self.welcome()))

    def _ask(self, peer: Peer, ask: Ask) -> None:
        asked = LoanRequest(peer, ask.name, ask.keys)
        if ask.engine_id == self.engine_id:
            self.loan_requests.append(asked)
        else:  # the engine was restarted and has nothing
            self.decline(asked)

    def _handle_pull(self, peer: Peer, message: OfPull, now: float) -> None:
        if (reason := self._ended.reason(peer, message)) is not None:
            if isinstance(message, Look | Settle):
                self._deny(peer, message, reason)  # the first Gone may be lost
            return
        match message:
            case Look():
                self._look(peer, message, now)
            case Settle():
                self._settle(peer, message)
            case Abandon():
                self._abandoned(peer, message)
            case Leave():
                self._left(peer, message, now)

    def _look(self, peer: Peer, look: Look, now: float) -> None:
        ticket_id = self._offers.ticket_of(look.key)
        if look.engine_id not in (None, self.engine_id):
            self._deny(peer, look, "the source was started anew")
        elif not self.known_sinks.touch(peer):
            self.outbox.append((peer, Stranger(look.key, look.pull)))
        elif (offer := self._offers.get(ticket_id)) is None:
            withdrawn = ticket_id in self._withdrawn
            self._deny(peer, look, Outcome.WITHDRAWN if withdrawn else LEASE_OVER)
        elif peer in offer.former_sinks:
            self._deny(peer, look, ANOTHER)
        elif not offer.is_stale(peer, look):
            self._leases.renew(ticket_id, until=now + SILENCE_S)
            if offer.sink != peer:
                self._tell_sink(offer, ANOTHER)
            offer.require_checksums(*self.known_sinks.checksum_spec(peer))
            self._offers.note_change(offer)
            offer.assign_sink(peer, look)
            self.outbox.append((peer, offer.next_news()))

    def _deny(self, peer: Peer, asked: Look | Settle, reason: str) -> None:
        self._tell(peer, Gone(asked.key, reason, asked.pull))

    def _tell_sink(self, offer: KvOffer, reason: str) -> None:
        """Tell the sink that has the offer, if any, that its pull is over."""
        if offer.sink is not None:
            self._tell(offer.sink, Gone(offer.key, reason, offer.pull))

    def _tell(self, peer: Peer, gone: Gone) -> None:
        self._ended.add(peer, gone.key, gone.pull, gone.reason)
        self.outbox.append((peer, gone))

    def _settle(self, peer: Peer, settle: Settle) -> None:
        ticket_id, key = self._meant(settle), settle.key
        offer = self._offers.get(ticket_id)
        if offer and (offer.state is not HandOverState.PULLING or offer.sink is None):
            self._deny(peer, settle, "it is not sealed, or was never asked for")
        elif offer and (offer.sink != peer or offer.is_stale(peer, settle)):
            self._deny(peer, settle, ANOTHER)
        elif offer and self._end(ticket_id, Outcome.DELIVERED, tell=False):
            self._ended.add(peer, key, settle.pull, "it is settled")
            confirmed = Confirmed(key, offer.ticket_id_beside(key), settle.pull)
            self.outbox.append((peer, confirmed))
        else:
            self._deny(peer, settle, LEASE_OVER)

    def _abandoned(self, peer: Peer, abandon: Abandon) -> None:
        ticket_id = self._meant(abandon)
        offer = self._offers.get(ticket_id)
        is_its_own = offer and offer.sink in (None, peer) and not offer.is_stale(peer, abandon)
        if abandon.pull is not None:
            reason = GIVEN_BACK if is_its_own else LEASE_OVER
            self._ended.add(peer, abandon.key, abandon.pull, reason)
        if is_its_own:
            self._end(ticket_id, Outcome.WITHDRAWN, tell=False)

    def _left(self, peer: Peer, leave: Leave, now: float) -> None:
        ticket_id = self._meant(leave)
        offer = self._offers.get(ticket_id)
        self._ended.add(peer, leave.key, leave.pull, "its sink has left it")
        if offer and offer.release_claim(peer, leave):
            self._leases.renew(ticket_id, until=now + LEASE_S if offer.sealed else None)

    def _take_name(self, older: KvOffer) -> None:
        """A newer offer has its name: a sink reading the older one by that name must stop."""
        if older.key == older.outer_id:
            self._tell_sink(older, "a newer offer has its name")
            older.sink = None

    def _meant(self, message: Settle | Abandon | Leave) -> str:
        return message.ticket_id or self._offers.ticket_of(message.key)

    def _end(self, ticket_id: str, outcome: Outcome, *, tell: bool = True) -> bool:
        if was_open := self._leases.settle(ticket_id):
            self._close(ticket_id, outcome, tell=tell)
        return was_open

    def _close(self, ticket_id: str, outcome: Outcome, *, tell: bool = True) -> None:
        offer = self._offers.remove(ticket_id)
        offer.end(outcome)
        if outcome is Outcome.WITHDRAWN:
            self._withdrawn.append(ticket_id)
        if tell:
            self._tell_sink(offer, outcome)
        self.settled.append(Settled(ticket_id, outcome))
