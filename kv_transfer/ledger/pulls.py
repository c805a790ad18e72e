"""The sink's books: every pull from its ticket to its one Arrived. Pure: time is an argument.

What one pull goes through is in pull.py; this is what it is told, and by whom.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kv_transfer.api import Arrived
from kv_transfer.blocks.mapping import map_blocks
from kv_transfer.errors import (
    CorruptKv,
    LayoutMismatch,
    LeaseExpired,
    PeerUnreachable,
    TransferCancelled,
    TransferError,
)
from kv_transfer.layout import can_pull
from kv_transfer.ledger.known_sources import Address, KnownSources, rejection_error
from kv_transfer.ledger.pending_loans import PendingLoans
from kv_transfer.ledger.pull import Pull
from kv_transfer.ledger.reads import ReadBook, ReadOrder
from kv_transfer.ledger.state import HandOverState
from kv_transfer.ticket import CacheHint, KvTicket
from kv_transfer.wire import (
    BEAT_S,
    SILENCE_S,
    Abandon,
    Confirmed,
    Drive,
    FromSink,
    FromSource,
    Gone,
    Hello,
    Leave,
    Lent,
    News,
    Refused,
    Stranger,
    TurnedAway,
    Welcome,
)


@dataclass(slots=True)
class PullBook:
    """What to send is left in `outbox`, what to read in `orders`, what ended in `arrived`.

    `parted` has the sources that were given up, or not needed for long: whatever is read
    from them should end.
    """

    hello: Hello
    beat_s: float = BEAT_S
    outbox: list[tuple[Address, FromSink]] = field(default_factory=list)
    orders: list[ReadOrder] = field(default_factory=list)
    parted: list[Address] = field(default_factory=list)
    arrived: list[Arrived] = field(default_factory=list)
    asks: PendingLoans = field(default_factory=PendingLoans)
    _pulls: dict[str, Pull] = field(default_factory=dict)
    _num_over: int = 0
    _sources: KnownSources = field(default_factory=KnownSources)
    _reads: ReadBook = field(default_factory=ReadBook)

    @property
    def num_open(self) -> int:
        """Tickets held, pulled, or asked for."""
        return len(self._pulls) + len(self.asks)

    def ask(self, name: str, cache: CacheHint, keys: Sequence[bytes], *, now: float) -> None:
        """Ask for a ticket; and introduce us, for what comes then."""
        self._sources.use(cache.address, now=now)
        if self._sources.greet(cache.address, cache.engine_id, now=now):
            self._say(cache.address, self.hello, now)
        self._say(cache.address, self.asks.ask(name, cache, keys, now=now), now)

    def hold(self, ticket: KvTicket, *, now: float) -> None:
        """Look at it from now on; a job that pulls it already does."""
        if ticket.ticket_id not in self._pulls:
            self._start(ticket, now)

    def pull(self, ticket: KvTicket, into: Sequence[int], skip: int, *, now: float) -> None:
        """Read it, from where holding it has come."""
        pull = self._pulls.get(ticket.ticket_id) or self._start(ticket, now)
        pull.begin(into, skip)
        if pull.can_end:  # while it was held
            self._close(pull)
        else:
            self._advance(pull, now)

    def abandon(self, ticket: KvTicket, *, now: float) -> None:
        """Tell the source; a pull under way fails with TransferCancelled."""
        pull = self._pulls.get(ticket.ticket_id)
        abandon = Abandon(*pull.names) if pull else Abandon(ticket.ticket_id)
        self._say((ticket.host, ticket.port), abandon, now)
        self._cancel(pull, now)

    def leave(self, ticket: KvTicket, *, now: float) -> None:
        """As `abandon`, but the source keeps the KV for another sink."""
        if pull := self._pulls.get(ticket.ticket_id):
            self._say(pull.address, Leave(*pull.names, pull.number), now)
            self._cancel(pull, now)

    def abandon_all(self, *, now: float) -> None:
        """Give up everything."""
        self.asks.end()
        for pull in list(self._pulls.values()):
            if pull.state is not HandOverState.ENDING:
                self.abandon(pull.ticket, now=now)

    def heard(self, address: Address, message: FromSource, *, now: float) -> None:
        """Take in one message of the source at this address."""
        match message:
            case Welcome():
                self._welcome(address, message, now)
            case Refused() | TurnedAway():
                self.lost(address, rejection_error(message), now=now)
            case Stranger():
                self._introduce(address, message, now)
            case Lent(ticket_id=ticket_id):
                if not self.asks.heard(message) and ticket_id is not None:
                    self._say(address, Abandon(ticket_id), now)
            case News() | Gone() | Confirmed():
                if pull := self._meant(address, message):
                    self._hear_of(pull, message, now)

    def knows(self, address: Address, welcome: Welcome) -> bool:
        """Whether this Welcome only repeats what we were told: reads may be under way."""
        return self._sources.knows(address, welcome)

    def lost(self, address: Address, error: TransferError, *, now: float) -> None:
        """Nothing more will come from there; reads under way are to be stopped."""
        self._sources.forget(address)
        self.parted.append(address)
        self.asks.lost(address)
        for pull in list(self._pulls.values()):
            if pull.address == address:
                self._fail(pull, error, now)

    def read_done(self, read_id: int, error: TransferError | None, *, now: float) -> None:
        """A read has ended: its bytes are here, or it will write no more.

        A link that fails one read fails them all; the next pull introduces itself anew.
        """
        pull, host = self._reads.end(read_id, now=now)
        if isinstance(error, CorruptKv):
            self._give_up(pull, error, now)
        elif error is not None:
            self._fail(pull, error, now)
            # a host that was met again since has another link
            if isinstance(error, PeerUnreachable) and self._sources.host(pull.address) is host:
                self.lost(pull.address, error, now=now)
        elif pull.can_end:
            self._close(pull)
        else:
            self._advance(pull, now)

    def needs_driving(self, address: Address, *, now: float) -> None:
        """Reads there may wait for their source to poll its agent: it is told to."""
        if self._sources.host(address) is not None:
            self._say(address, Drive(), now)

    def give_up(self, now: float) -> None:
        """End the pulls whose source is silent, or does not let itself be read any more.

        A pull that is read for ends once its reads have: whoever was lost is parted from.
        """
        self.asks.expire(now)
        for pull in list(self._pulls.values()):
            host = self._sources.host(pull.address)
            if host is not None and self._reads.is_stuck(host, now=now):
                stuck = PeerUnreachable(f"no read from {pull.address} has ended for too long")
                self.lost(pull.address, stuck, now=now)
            elif pull.error is None and now - pull.heard_at >= SILENCE_S:
                silent = PeerUnreachable(f"{pull.address} was silent for {SILENCE_S} s")
                self.lost(pull.address, silent, now=now)

    def returned(self, now: float) -> None:
        """Our own thread was away: it asked nobody, and saw no read end. Time counts anew."""
        self._reads.returned(now)
        for pull in self._pulls.values():
            pull.heard_at = now

    def tick(self, now: float) -> None:
        """Give up on who is silent, and let the others know that we are still here."""
        self.give_up(now)
        for pull in list(self._pulls.values()):
            if pull.error is None and pull.is_due(self.beat_s, now=now):
                self._greet(pull, now)
                self._look(pull, now)
        busy = {pull.address for pull in self._pulls.values()}
        self.parted += self._sources.leave_idle(busy, now=now)

    def _cancel(self, pull: Pull | None, now: float) -> None:
        if pull and pull.is_held:
            self._remove(pull)
        elif pull:
            self._fail(pull, TransferCancelled(), now)

    def _hear_of(self, pull: Pull, message: News | Gone | Confirmed, now: float) -> None:
        match message:
            case News() if not pull.is_of(message):
                self._fail(pull, LeaseExpired("a newer offer has its name"), now)
            case News():
                pull.learn(message, now=now)
                self._advance(pull, now)
            case Gone(reason=reason):
                self._fail(pull, LeaseExpired(reason), now)
            case Confirmed() if pull.state is HandOverState.SETTLING and pull.is_of(message):
                self._close(pull)

    def _meant(
        self, address: Address, message: News | Gone | Confirmed | Stranger
    ) -> Pull | None:
        """Whom this is said to: not another pull by the same name, elsewhere or later."""
        pull = self._pulls.get(message.key)
        if pull is None or (pull.address, pull.number) != (address, message.pull):
            return None
        return pull

    def _start(self, ticket: KvTicket, now: float) -> Pull:
        pull = self._pulls[ticket.ticket_id] = Pull(ticket, now, self._num_over)
        self._greet(pull, now)
        self._look(pull, now)
        return pull

    def _say(self, address: Address, message: FromSink, now: float) -> None:
        self._sources.use(address, now=now)
        self.outbox.append((address, message))

    def _look(self, pull: Pull, now: float) -> None:
        self._say(pull.address, pull.look(now=now), now)

    def _greet(self, pull: Pull, now: float) -> None:
        self._sources.use(pull.address, now=now)
        if self._sources.greet(pull.address, pull.ticket.engine_id, now=now):
            self._say(pull.address, self.hello, now)

    def _introduce(self, address: Address, stranger: Stranger, now: float) -> None:
        """The source has forgotten us, or is another one; a Hello may be on its way already."""
        pull = self._meant(address, stranger)
        if pull is None or pull.error is not None or self._sources.host(address) is None:
            return
        self._sources.forget(address)
        if pull.theirs:
            self._fail(pull, LeaseExpired("the source was started anew"), now)
        else:
            self._greet(pull, now)
            self._look(pull, now)

    def _welcome(self, address: Address, welcome: Welcome, now: float) -> None:
        reason = can_pull(welcome.layout, self.hello.layout)
        if welcome.fingerprint != self.hello.fingerprint:
            ours = self.hello.fingerprint
            reason = f"fingerprint is {welcome.fingerprint} there and {ours} here"
        if reason:
            self.lost(address, LayoutMismatch(reason), now=now)
            return
        self._sources.welcome(address, welcome)
        for pull in list(self._pulls.values()):
            if pull.address != address:
                continue
            if pull.ticket.engine_id not in (None, welcome.engine_id):
                self._fail(pull, LeaseExpired("another engine has its address"), now)
            else:
                self._advance(pull, now)

    def _advance(self, pull: Pull, now: float) -> None:
        """Order the reads that have become possible; settle when all are done."""
        host = self._sources.host(pull.address, pull.ticket.engine_id)
        if not pull.is_reading or host is None:
            return
        way = map_blocks(host.layout, self.hello.layout)
        if useless := pull.mismatch(way) or pull.unchecked(self.hello.level, way):
            self._give_up(pull, useless, now)
            return
        if order := self._reads.order(pull, host, way, now=now):
            self.orders.append(order)
        if pull.is_all_here:
            self._say(pull.address, pull.settle(now=now), now)

    def _give_up(self, pull: Pull, error: TransferError, now: float) -> None:
        """Nobody wants this KV any more: its source may free it at once."""
        self._say(pull.address, Abandon(*pull.names), now)
        self._fail(pull, error, now)

    def _fail(self, pull: Pull, error: TransferError, now: float) -> None:
        pull.fail(error, now=now)
        if pull.can_end:
            self._close(pull)

    def _close(self, pull: Pull) -> None:
        self._remove(pull)
        self.arrived.append(pull.end())

    def _remove(self, pull: Pull) -> None:
        del self._pulls[pull.ticket.ticket_id]
        self._num_over += 1
