"""The source's books: what is on offer, to whom, and until when. Pure: time is an argument.

offer ── extend ── seal ──▶ a sink Looks (the lease renews) ── Settle ──▶ DELIVERED
                            silence, or nobody came ───────────────────▶ EXPIRED
        withdrawn here, or abandoned by its sink ──────────────────────▶ WITHDRAWN

Whoever looks last has the ticket: the one before it may have died. What a sink copies
counts only if its Settle meets an open lease, so it cannot keep a stale byte.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kv_transfer.api import Outcome, Sealed, Settled
from kv_transfer.layout import KvLayout, can_pull
from kv_transfer.leases import LeaseTable
from kv_transfer.ticket import LEASE_S
from kv_transfer.wire import (
    SILENCE_S,
    Abandon,
    Confirmed,
    FromSink,
    FromSource,
    Gone,
    Hello,
    Look,
    News,
    Refused,
    Settle,
    Stranger,
    Welcome,
)

Peer = bytes
MOST_GUESTS = 4096


@dataclass(slots=True)
class _Offer:
    outer_id: str | None
    blocks: list[int] = field(default_factory=list)
    sealed: Sealed | None = None
    sink: Peer | None = None
    key: str = ""  # the name by which its sink knows it
    told: int = 0  # blocks
    fresh: bool = False  # there is something to tell


@dataclass(slots=True)
class OfferBook:
    """Every offer from `offer` to its one Settled; what to send is left in `outbox`.

    `welcome` is what a sink that fits is told of our memory.
    """

    welcome: Callable[[], Welcome]
    fingerprint: str
    layout: KvLayout
    engine_id: str
    most_guests: int = MOST_GUESTS
    outbox: list[tuple[Peer, FromSource]] = field(default_factory=list)
    settled: list[Settled] = field(default_factory=list)
    _offers: dict[str, _Offer] = field(default_factory=dict)
    _by_outer: dict[str, str] = field(default_factory=dict)
    _leases: LeaseTable = field(default_factory=LeaseTable)
    _guests: dict[Peer, str] = field(default_factory=dict)
    _proven: set[Peer] = field(default_factory=set)  # who has read something before

    def offer(self, ticket_id: str, outer_id: str | None) -> None:
        """Open a lease without a deadline."""
        self._leases.open(ticket_id)
        self._offers[ticket_id] = _Offer(outer_id)
        if outer_id is not None:
            self._rename(outer_id, ticket_id)

    def extend(self, ticket_id: str, blocks: Sequence[int]) -> None:
        """More to tell the sink at the next `flush`."""
        if offer := self._offers.get(ticket_id):
            offer.blocks += blocks
            offer.fresh = True

    def seal(self, ticket_id: str, sealed: Sealed, *, now: float) -> None:
        """The end is there; a sink that never came has LEASE_S from now."""
        if offer := self._offers.get(ticket_id):
            offer.sealed, offer.fresh = sealed, True
            if offer.sink is None:
                self._leases.renew(ticket_id, until=now + LEASE_S)

    def withdraw(self, ticket_id: str) -> None:
        """Settle at once: what a sink copies from now on is void."""
        self._end(ticket_id, Outcome.WITHDRAWN)

    def withdraw_all(self) -> None:
        """End every offer."""
        for ticket_id in list(self._offers):
            self.withdraw(ticket_id)

    def expire(self, now: float) -> None:
        """End what is late; call it often, it has no timer of its own."""
        for ticket_id in self._leases.expire(now):
            self._close(ticket_id, Outcome.EXPIRED)

    def flush(self) -> None:
        """Tell every sink what came up since it was last told."""
        for offer in self._offers.values():
            if offer.fresh and offer.sink is not None:
                self._tell(offer)

    def heard(self, peer: Peer, message: FromSink, *, now: float) -> None:
        """Answer one message of a sink."""
        match message:
            case Hello():
                self._greet(peer, message)
            case Look(key=key, engine_id=engine_id, known=known):
                self._look(peer, key, engine_id, known, now)
            case Settle(key=key):
                self._settle(peer, key)
            case Abandon(key=key):
                self._abandoned(peer, key)

    @property
    def num_open(self) -> int:
        """Offers that have not settled."""
        return len(self._offers)

    def needs_driving(self, machine: str) -> bool:
        """Whether somebody may be reading right now who needs our agent to be polled.

        That is a sink on another machine, and any sink whose connection is being made.
        """
        sinks = {offer.sink for offer in self._offers.values() if offer.sink is not None}
        return any(
            self._guests.get(sink) != machine or sink not in self._proven for sink in sinks
        )

    def _greet(self, peer: Peer, hello: Hello) -> None:
        self._forget(peer)
        reason = can_pull(self.layout, hello.layout)
        if hello.fingerprint != self.fingerprint:
            reason = f"fingerprint is {self.fingerprint} here and {hello.fingerprint} there"
        if reason:
            self.outbox.append((peer, Refused(reason)))
        else:
            self._guests[peer] = hello.machine
            if len(self._guests) > self.most_guests:  # sinks that are long gone never say so
                self._forget(next(iter(self._guests)))
            self.outbox.append((peer, self.welcome()))

    def _forget(self, peer: Peer) -> None:
        """If it does come back it is a Stranger, and says Hello."""
        self._guests.pop(peer, None)
        self._proven.discard(peer)

    def _look(
        self, peer: Peer, key: str, engine_id: str | None, known: int, now: float
    ) -> None:
        ticket_id = self._find(key)
        if engine_id not in (None, self.engine_id):
            self.outbox.append((peer, Gone(key, "the source was started anew")))
        elif peer not in self._guests:
            self.outbox.append((peer, Stranger(key)))
        elif not self._leases.renew(ticket_id, until=now + SILENCE_S):
            self.outbox.append((peer, Gone(key, "the lease is over")))
        else:
            self._guests[peer] = self._guests.pop(peer)  # who asked last is forgotten last
            offer = self._offers[ticket_id]
            offer.sink, offer.key, offer.told = peer, key, min(known, len(offer.blocks))
            self._tell(offer)

    def _tell(self, offer: _Offer) -> None:
        assert offer.sink is not None
        news = News(offer.key, offer.told, tuple(offer.blocks[offer.told :]), offer.sealed)
        self.outbox.append((offer.sink, news))
        offer.told, offer.fresh = len(offer.blocks), False

    def _settle(self, peer: Peer, key: str) -> None:
        if self._end(self._find(key), Outcome.DELIVERED, tell=False):
            self._proven.add(peer)
            self.outbox.append((peer, Confirmed(key)))
        else:
            self.outbox.append((peer, Gone(key, "the lease is over")))

    def _abandoned(self, peer: Peer, key: str) -> None:
        offer = self._offers.get(self._find(key))
        if offer and offer.sink in (None, peer):
            self._end(self._find(key), Outcome.WITHDRAWN, tell=False)

    def _rename(self, outer_id: str, ticket_id: str) -> None:
        """A newer offer takes the name: who reads the older one by it must not go on here."""
        older = self._offers.get(self._by_outer.get(outer_id, ""))
        if older and older.sink is not None and older.key == outer_id:
            self.outbox.append((older.sink, Gone(outer_id, "a newer offer has its name")))
            older.sink = None
        self._by_outer[outer_id] = ticket_id

    def _find(self, key: str) -> str:
        return self._by_outer.get(key, key)

    def _end(self, ticket_id: str, outcome: Outcome, *, tell: bool = True) -> bool:
        if was_open := self._leases.settle(ticket_id):
            self._close(ticket_id, outcome, tell=tell)
        return was_open

    def _close(self, ticket_id: str, outcome: Outcome, *, tell: bool = True) -> None:
        offer = self._offers.pop(ticket_id)
        if offer.outer_id is not None and self._by_outer.get(offer.outer_id) == ticket_id:
            del self._by_outer[offer.outer_id]
        if tell and offer.sink is not None:
            self.outbox.append((offer.sink, Gone(offer.key, outcome)))
        self.settled.append(Settled(ticket_id, outcome))
