"""The sink's books: every pull (pull.py) from its ticket to its one Arrived. Pure: time is an
argument.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kv_transfer.api import Arrived
from kv_transfer.blocks.sequence_mapping import map_sequences
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
from kv_transfer.ledger.open_pulls import OpenPulls
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
    Lent,
    News,
    Refused,
    Stranger,
    TurnedAway,
    Welcome,
)


@dataclass(slots=True)
class PullBook:
    """Messages to send are in `outbox`, reads to start in `orders`, ended pulls in `arrived`.

    `to_disconnect`: sources that failed or were idle for long; their reads are cancelled.
    """

    hello: Hello
    beat_s: float = BEAT_S
    outbox: list[tuple[Address, FromSink]] = field(default_factory=list)
    orders: list[ReadOrder] = field(default_factory=list)
    to_disconnect: list[Address] = field(default_factory=list)
    arrived: list[Arrived] = field(default_factory=list)
    pending_loans: PendingLoans = field(default_factory=PendingLoans)
    _pulls: OpenPulls = field(default_factory=OpenPulls)
    _num_over: int = 0
    _sources: KnownSources = field(default_factory=KnownSources)
    _reads: ReadBook = field(default_factory=ReadBook)

    @property
    def num_open(self) -> int:
        """Tickets held or pulled, and loans requested."""
        return len(self._pulls) + len(self.pending_loans)

    def request_loan(
        self, name: str, cache: CacheHint, keys: Sequence[bytes], *, now: float
    ) -> None:
        """Ask a source for a loan; says Hello first if needed."""
        self._sources.mark_used(cache.address, now=now)
        if self._sources.should_say_hello(cache.address, cache.engine_id, now=now):
            self._say(cache.address, self.hello, now)
        self._say(cache.address, self.pending_loans.start(name, cache, keys, now=now), now)

    def hold(self, ticket: KvTicket, *, now: float) -> None:
        """Send Looks for it from now on, unless a job that pulls it does so already."""
        if self._pulls.get(ticket.ticket_id) is None:
            self._start(ticket, now)

    def pull(self, ticket: KvTicket, into: Sequence[int], skip: int, *, now: float) -> None:
        """Read it; goes on from what holding it has brought."""
        pull = self._pulls.get(ticket.ticket_id) or self._start(ticket, now)
        pull.begin(into, skip)
        if pull.can_end:  # it failed while it was held
            self._close(pull)
        else:
            self._advance(pull, now)

    def abandon(self, ticket: KvTicket, *, now: float) -> None:
        """Tell the source; a pull under way fails with TransferCancelled."""
        pull = self._pulls.get(ticket.ticket_id)
        abandon = pull.abandon() if pull else Abandon(ticket.ticket_id)
        self._say((ticket.host, ticket.port), abandon, now)
        self._cancel(pull)

    def release_claim(self, ticket: KvTicket, *, now: float) -> None:
        """As `abandon`, but the source keeps the KV for another sink."""
        if pull := self._pulls.get(ticket.ticket_id):
            self._say(pull.address, pull.leave(), now)
            self._cancel(pull)

    def abandon_all(self, *, now: float) -> None:
        """End everything."""
        self.pending_loans.cancel_all()
        for pull in self._pulls:
            if pull.state is not HandOverState.ENDING:
                self.abandon(pull.ticket, now=now)

    def handle_message(self, address: Address, message: FromSource, *, now: float) -> None:
        """Handle one message of the source at this address."""
        match message:
            case Welcome():
                self._welcome(address, message, now)
            case Refused() | TurnedAway():
                self.fail_source(address, rejection_error(message))
            case Stranger():
                self._introduce(address, message, now)
            case Lent(ticket_id=ticket_id):
                if not self.pending_loans.take_answer(message) and ticket_id is not None:
                    self._say(address, Abandon(ticket_id), now)
            case News() | Gone() | Confirmed():
                if pull := self._meant(address, message):
                    self._hear_of(pull, message, now)

    def has_welcome(self, address: Address, welcome: Welcome) -> bool:
        """Whether this Welcome repeats what is known: reads may be under way."""
        return self._sources.knows(address, welcome)

    def fail_source(self, address: Address, error: TransferError) -> None:
        """Fail every pull from this address; its reads are to be cancelled."""
        self._sources.forget(address)
        self.to_disconnect.append(address)
        self.pending_loans.fail_source(address)
        for pull in self._pulls.at(address):
            self._fail(pull, error)

    def read_done(self, read_id: int, error: TransferError | None, *, now: float) -> None:
        """A read has ended: its bytes are here, or it will write no more.

        An error of the link fails all reads over it; the next pull says Hello again.
        """
        pull, host = self._reads.end(read_id, now=now)
        if isinstance(error, CorruptKv) and pull.error is None:  # else it is left or given up
            pull.mismatch = error
            self._look(pull, now)
        elif error is not None:
            self._fail(pull, error)
            # a source that was connected again since has another link
            is_same_link = self._sources.welcome_of(pull.address) is host
            if isinstance(error, PeerUnreachable) and is_same_link:
                self.fail_source(pull.address, error)
        elif pull.can_end:
            self._close(pull)
        else:
            self._advance(pull, now)

    def needs_driving(self, address: Address, *, now: float) -> None:
        """Ask a source to poll its agent, since a read of ours may wait for that."""
        if self._sources.welcome_of(address) is not None:
            self._say(address, Drive(), now)

    def fail_silent_pulls(self, now: float) -> None:
        """Fail the pulls whose source is silent or whose reads do not end."""
        self.pending_loans.expire(now)
        for address in tuple(self._pulls.sources):
            host = self._sources.welcome_of(address)
            if host is not None and self._reads.is_stuck(host, now=now):
                stuck = PeerUnreachable(f"no read from {address} has ended for too long")
                self.fail_source(address, stuck)
        for address in {pull.address: None for pull in self._pulls.silent(now=now)}:
            silent = PeerUnreachable(f"{address} was silent for {SILENCE_S} s")
            self.fail_source(address, silent)

    def restart_timeouts(self, now: float) -> None:
        """The transfer thread was stalled: count every timeout from now."""
        self._reads.restart_timeouts(now)
        for pull in self._pulls:
            pull.heard_at = now

    def tick(self, now: float) -> None:
        """Fail pulls with silent sources, send Looks to the others, and drop idle sources."""
        self.fail_silent_pulls(now)
        for pull in self._pulls.due(self.beat_s, now=now):
            self._greet(pull, now)
            self._look(pull, now)
        self.to_disconnect += self._sources.forget_idle(self._pulls.sources, now=now)

    def _cancel(self, pull: Pull | None) -> None:
        if pull and pull.is_held:
            self._remove(pull)
        elif pull:
            self._fail(pull, TransferCancelled())

    def _hear_of(self, pull: Pull, message: News | Gone | Confirmed, now: float) -> None:
        match message:
            case News() if not pull.concerns(message):
                self._fail(pull, LeaseExpired("a newer offer has its name"))
            case News():
                pull.take_news(message, now=now)
                self._advance(pull, now)
            case Gone(reason=reason):
                self._fail(pull, pull.why_gone(reason))
            case Confirmed() if pull.state is HandOverState.SETTLING and pull.concerns(message):
                self._close(pull)

    def _meant(
        self, address: Address, message: News | Gone | Confirmed | Stranger
    ) -> Pull | None:
        """The pull that this message is for; None if that is another by the same name."""
        pull = self._pulls.get(message.key)
        if pull is None or (pull.address, pull.number) != (address, message.pull):
            return None
        return pull

    def _start(self, ticket: KvTicket, now: float) -> Pull:
        pull = Pull(ticket, now, self._num_over)
        self._pulls.add(pull)
        self._greet(pull, now)
        self._look(pull, now)
        return pull

    def _say(self, address: Address, message: FromSink, now: float) -> None:
        self._sources.mark_used(address, now=now)
        self.outbox.append((address, message))

    def _look(self, pull: Pull, now: float) -> None:
        """Send a Look. Bytes that do not match are given back before: the answer is a Gone that
        tells whether the source still lent them.
        """
        if pull.mismatch is not None:
            self._say(pull.address, pull.abandon(), now)
        self._say(pull.address, self._pulls.look(pull, now=now), now)

    def _greet(self, pull: Pull, now: float) -> None:
        self._sources.mark_used(pull.address, now=now)
        if self._sources.should_say_hello(pull.address, pull.ticket.engine_id, now=now):
            self._say(pull.address, self.hello, now)

    def _introduce(self, address: Address, stranger: Stranger, now: float) -> None:
        """The source has forgotten us or is another one; say Hello unless that is under way."""
        pull = self._meant(address, stranger)
        if pull is None or pull.error is not None or self._sources.welcome_of(address) is None:
            return
        self._sources.forget(address)
        if pull.theirs:
            self.to_disconnect.append(address)  # or a read that never ends has no time limit
            self._fail(pull, LeaseExpired("the source was started anew"))
        else:
            self._greet(pull, now)
            self._look(pull, now)

    def _welcome(self, address: Address, welcome: Welcome, now: float) -> None:
        reason = can_pull(welcome.layout, self.hello.layout)
        if welcome.fingerprint != self.hello.fingerprint:
            ours = self.hello.fingerprint
            reason = f"fingerprint is {welcome.fingerprint} there and {ours} here"
        if reason:
            self.fail_source(address, LayoutMismatch(reason))
            return
        self._sources.store_welcome(address, welcome)
        for pull in self._pulls.at(address):
            if pull.ticket.engine_id not in (None, welcome.engine_id):
                self._fail(pull, PeerUnreachable("another engine has its address"))
            else:
                self._advance(pull, now)

    def _advance(self, pull: Pull, now: float) -> None:
        """Order the reads that have become possible; settle when all are done."""
        host = self._sources.welcome_of(pull.address, pull.ticket.engine_id)
        if not pull.is_reading or host is None:
            return
        mapping, level = map_sequences(host.layout, self.hello.layout), self.hello.level
        if error := pull.block_count_error(mapping) or pull.missing_checksums(level, mapping):
            self._give_up(pull, error, now)
            return
        if order := self._reads.order(pull, host, mapping, now=now):
            self.orders.append(order)
        if pull.is_complete:
            self._say(pull.address, pull.settle(now=now), now)

    def _give_up(self, pull: Pull, error: TransferError, now: float) -> None:
        """Fail a pull and let its source free the KV at once."""
        self._say(pull.address, pull.abandon(), now)
        self._fail(pull, error)

    def _fail(self, pull: Pull, error: TransferError) -> None:
        pull.fail(error)
        if pull.can_end:
            self._close(pull)

    def _close(self, pull: Pull) -> None:
        self._remove(pull)
        self.arrived.append(pull.end())

    def _remove(self, pull: Pull) -> None:
        self._pulls.remove(pull)
        self._num_over += 1
