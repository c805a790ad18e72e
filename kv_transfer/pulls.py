"""The sink's books: every pull from its ticket to its one Arrived. Pure: time is an argument.

hold ──▶ HELD ── pull ──▶ PULLING ── all read, sealed ──▶ SETTLING ── Confirmed ──▶ Arrived
                             │                                │
                             └── error, or abandoned ─────────┴──▶ ENDING ── no read in
                                                                   flight ──▶ Arrived(error)

Until Arrived the blocks are the sink's: a read that was started may write to them, so a
pull that failed waits in ENDING for the last of its reads. A HELD ticket that fails keeps
its error until it is pulled.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from kv_transfer.api import Arrived, Moved, Sealed
from kv_transfer.errors import (
    LayoutMismatch,
    LeaseExpired,
    PeerUnreachable,
    TransferCancelled,
    TransferError,
)
from kv_transfer.layout import can_pull
from kv_transfer.regions import Run, coalesce
from kv_transfer.sources import Address, Sources
from kv_transfer.ticket import KvTicket
from kv_transfer.wire import (
    BEAT_S,
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


class Stage(Enum):
    """Where a pull is; see the module's picture."""

    HELD = auto()
    PULLING = auto()
    SETTLING = auto()
    ENDING = auto()


@dataclass(frozen=True, slots=True)
class ReadOrder:
    """Blocks to be read from one source; `read_id` comes back when they are here."""

    read_id: int
    address: Address
    runs: Sequence[Run]


@dataclass(slots=True)
class _Pull:
    ticket: KvTicket
    heard_at: float
    stage: Stage = Stage.HELD
    into: Sequence[int] = ()
    theirs: list[int] = field(default_factory=list)
    ordered: int = 0  # blocks whose read was started, or that need none
    in_flight: int = 0
    sealed: Sealed | None = None
    error: TransferError | None = None
    looked_at: float | None = None
    moving_since: float = 0.0
    num_bytes: int = 0
    seconds: float = 0.0

    @property
    def address(self) -> Address:
        return self.ticket.host, self.ticket.port


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
    _pulls: dict[str, _Pull] = field(default_factory=dict)
    _sources: Sources = field(default_factory=Sources)
    _reads: dict[int, tuple[_Pull, Welcome]] = field(default_factory=dict)
    _num_reads: int = 0

    @property
    def num_open(self) -> int:
        """Tickets held or pulled."""
        return len(self._pulls)

    def hold(self, ticket: KvTicket, *, now: float) -> None:
        """Look at it from now on; a job that pulls it already does."""
        if ticket.ticket_id not in self._pulls:
            self._start(ticket, now)

    def pull(self, ticket: KvTicket, into: Sequence[int], skip: int, *, now: float) -> None:
        """Read it, from where holding it has come."""
        pull = self._pulls.get(ticket.ticket_id) or self._start(ticket, now)
        pull.into, pull.ordered, pull.stage = into, skip, Stage.PULLING
        if pull.error is not None:
            self._fail(pull, pull.error, now)
        else:
            self._advance(pull, now)

    def abandon(self, ticket: KvTicket, *, now: float) -> None:
        """Tell the source; a pull under way fails with TransferCancelled."""
        pull = self._pulls.get(ticket.ticket_id)
        self._say((ticket.host, ticket.port), Abandon(ticket.ticket_id), now)
        if pull and pull.stage is Stage.HELD:
            del self._pulls[ticket.ticket_id]
        elif pull:
            self._fail(pull, TransferCancelled(), now)

    def abandon_all(self, *, now: float) -> None:
        """Give up everything."""
        for pull in list(self._pulls.values()):
            if pull.stage is not Stage.ENDING:
                self.abandon(pull.ticket, now=now)

    def heard(self, address: Address, message: FromSource, *, now: float) -> None:
        """Take in one message of the source at this address."""
        match message:
            case Welcome():
                self._welcome(address, message, now)
            case Refused(reason=reason):
                self.lost(address, LayoutMismatch(reason), now=now)
            case Stranger(key=key):
                self._introduce(address, key, now)
            case News():
                self._news(message, now)
            case Gone(key=key, reason=reason):
                if pull := self._pulls.get(key):
                    self._fail(pull, LeaseExpired(reason), now)
            case Confirmed(key=key):
                self._confirm(key)

    def lost(self, address: Address, error: TransferError, *, now: float) -> None:
        """Nothing more will come from there; reads under way are to be stopped."""
        self._sources.forget(address)
        self.parted.append(address)
        for pull in list(self._pulls.values()):
            if pull.address == address:
                self._fail(pull, error, now)

    def read_done(self, read_id: int, error: TransferError | None, *, now: float) -> None:
        """A read has ended: its bytes are here, or it will write no more.

        A link that fails one read fails them all; the next pull introduces itself anew.
        """
        pull, host = self._reads.pop(read_id)
        pull.in_flight -= 1
        if pull.in_flight == 0:
            pull.seconds += now - pull.moving_since
        if error is not None:
            self._fail(pull, error, now)
            # a host that was met again since has another link
            if isinstance(error, PeerUnreachable) and self._sources.host(pull.address) is host:
                self.lost(pull.address, error, now=now)
        elif pull.stage is Stage.ENDING:
            self._bury(pull)
        else:
            self._advance(pull, now)

    def tick(self, now: float) -> None:
        """Give up on who is silent, and let the others know that we are still here."""
        for pull in list(self._pulls.values()):
            if pull.error is not None:
                continue
            if now - pull.heard_at >= SILENCE_S:
                silent = PeerUnreachable(f"{pull.address} was silent for {SILENCE_S} s")
                self.lost(pull.address, silent, now=now)
            elif pull.stage in (Stage.HELD, Stage.PULLING) and self._is_due(pull, now):
                self._look(pull, now)
        busy = {pull.address for pull in self._pulls.values()}
        self.parted += self._sources.leave_idle(busy, now=now)

    def _start(self, ticket: KvTicket, now: float) -> _Pull:
        pull = self._pulls[ticket.ticket_id] = _Pull(ticket, heard_at=now)
        self._greet(pull, now)
        self._look(pull, now)
        return pull

    def _say(self, address: Address, message: FromSink, now: float) -> None:
        self._sources.use(address, now=now)
        self.outbox.append((address, message))

    def _greet(self, pull: _Pull, now: float) -> None:
        self._sources.use(pull.address, now=now)
        if self._sources.greet(pull.address, pull.ticket.engine_id):
            self._say(pull.address, self.hello, now)

    def _introduce(self, address: Address, key: str, now: float) -> None:
        """The source has forgotten us, or is another one; a Hello may be on its way already."""
        pull = self._pulls.get(key)
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
            reason = f"fingerprint is {welcome.fingerprint} there"
        if reason:
            self.lost(address, LayoutMismatch(reason), now=now)
            return
        self._sources.welcome(address, welcome)
        for pull in list(self._pulls.values()):
            if pull.address == address:
                self._advance(pull, now)

    def _is_due(self, pull: _Pull, now: float) -> bool:
        return pull.looked_at is None or now - pull.looked_at >= self.beat_s

    def _look(self, pull: _Pull, now: float) -> None:
        pull.looked_at = now
        look = Look(pull.ticket.ticket_id, pull.ticket.engine_id, len(pull.theirs))
        self._say(pull.address, look, now)

    def _news(self, news: News, now: float) -> None:
        pull = self._pulls.get(news.key)
        if pull is None or news.start > len(pull.theirs):
            return  # over, or something before it was lost: the next Look asks again
        pull.heard_at = now
        pull.theirs += news.blocks[len(pull.theirs) - news.start :]
        pull.sealed = news.sealed or pull.sealed
        self._advance(pull, now)

    def _advance(self, pull: _Pull, now: float) -> None:
        """Order the reads that have become possible; settle when all are done."""
        host = self._sources.host(pull.address)
        if pull.stage is not Stage.PULLING or host is None:
            return
        offered, reserved = len(pull.theirs), len(pull.into)
        if offered > reserved or (pull.sealed and offered < reserved):
            self._say(pull.address, Abandon(pull.ticket.ticket_id), now)
            mismatch = f"{offered} blocks on offer, {reserved} reserved"
            self._fail(pull, LayoutMismatch(mismatch), now)
            return
        self._order(pull, host, now)
        if pull.sealed and pull.in_flight == 0:
            pull.stage, pull.heard_at = Stage.SETTLING, now
            self._say(pull.address, Settle(pull.ticket.ticket_id), now)

    def _order(self, pull: _Pull, host: Welcome, now: float) -> None:
        pairs = zip(pull.theirs[pull.ordered :], pull.into[pull.ordered :], strict=False)
        runs = list(coalesce(pairs))
        if not runs:
            return
        pull.ordered = len(pull.theirs)
        pull.num_bytes += sum(run.count for run in runs) * sum(self.hello.layout.block_bytes)
        if pull.in_flight == 0:
            pull.moving_since = now
        pull.in_flight += 1
        self._num_reads += 1
        self._reads[self._num_reads] = pull, host
        self.orders.append(ReadOrder(self._num_reads, pull.address, runs))

    def _confirm(self, key: str) -> None:
        pull = self._pulls.get(key)
        if pull and pull.stage is Stage.SETTLING:
            del self._pulls[key]
            moved = Moved(pull.num_bytes, pull.seconds)
            self.arrived.append(Arrived(key, pull.sealed, moved=moved))

    def _fail(self, pull: _Pull, error: TransferError, now: float) -> None:
        pull.error = pull.error or error
        pull.heard_at = now
        if pull.stage is Stage.HELD:
            return  # its owner hears of it when it pulls
        pull.stage = Stage.ENDING
        self._bury(pull)

    def _bury(self, pull: _Pull) -> None:
        if pull.in_flight == 0:
            del self._pulls[pull.ticket.ticket_id]
            self.arrived.append(Arrived(pull.ticket.ticket_id, error=pull.error))
