"""One node's side of the hand-over: both books, the side channel, and a mover, turn by turn.

What peers say and are told goes through `Exchange`.
Everything happens in `turn`, in one thread; the engine's thread talks to it by two queues.
Only `sweep` is another thread's: where a turn does not end, because the mover does not answer,
it goes on with aborts and leases, so that no block waits for a turn. It has the books whenever
the mover is asked.
"""

import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from kv_transfer.checking import Level
from kv_transfer.errors import PeerUnreachable, TransferError
from kv_transfer.identity import Identity, this_machine
from kv_transfer.integrity.checked import BYTES_AT_ONCE, CheckedMover
from kv_transfer.integrity.checksums import BlockSums
from kv_transfer.ledger.offers import OfferBook
from kv_transfer.ledger.pulls import PullBook
from kv_transfer.movers.mover import Mover
from kv_transfer.movers.remote import Introduced
from kv_transfer.regions import Region, describe
from kv_transfer.side_channel.connections import Reception
from kv_transfer.side_channel.exchange import Exchange
from kv_transfer.side_channel.waiting import Ready
from kv_transfer.side_channel.wakeup import Wakeup
from kv_transfer.thread.attendance import Attendance
from kv_transfer.thread.news import NewsQueues
from kv_transfer.wire import (
    SILENCE_S,
    Hello,
    Welcome,
)

IDLE_TURN_S = 5.0
OPEN_TURN_S = 0.05
DRIVEN_TURN_S = 0.001  # while a sink may need our agent to be polled
READING_PAUSE_S = 0.0001  # between two looks at our reads: the engine needs the GIL

log = logging.getLogger(__name__)
Command = Callable[[], None]
Clock = Callable[[], float]


@dataclass
class TransferService:
    """Owns the sockets and the mover from construction to `close`."""

    identity: Identity
    regions: Sequence[Region]
    mover: Mover
    reception: Reception
    level: Level = Level.OFF
    clock: Clock = time.monotonic
    pause: Callable[[float], None] = time.sleep
    commands: deque[Command] = field(default_factory=deque)
    queues: NewsQueues = field(default_factory=NewsQueues)
    others: Sequence[Introduced] = ()  # ranks of ours, whose memory has agents of their own

    def __post_init__(self) -> None:
        me = self.identity
        facts = me.fingerprint, me.layout, me.engine_id, self.level
        self.offers = OfferBook(self._welcome, *facts)
        self.pulls = PullBook(Hello(me.fingerprint, me.layout, self.level))
        self._sums = BlockSums(self.regions)
        self.mover: Mover = CheckedMover(self.mover, self._sums)
        self._exchange = Exchange(self.reception, me.engine_id.encode())
        self._wake, self._news, self._waiting = Wakeup(), Wakeup(), self.reception.waiting
        self._waiting.watch(self._wake.fileno())
        self._awake = False
        self._books = threading.Lock()
        self._attendance = Attendance(lambda: self.clock(), self.clock())

    @property
    def late_s(self) -> float:
        """How long ago the turn that is being made should have looked through the books."""
        return self._attendance.late_s

    def post(self, command: Command) -> None:
        """Called by the engine's thread: run this at the next turn, which is now."""
        self.commands.append(command)
        if not self._awake:
            self._awake = True
            self._wake.ring()

    @property
    def news_fd(self) -> int:
        """Readable while there is something in `queues`."""
        return self._news.fileno()

    def clear_news(self) -> None:
        """Called by the engine's thread before it reads `queues`."""
        self._news.clear()

    def turn(self, longest_s: float = IDLE_TURN_S) -> None:
        """Wait for something to happen, at most `longest_s`; do all that follows from it."""
        self._wait(min(longest_s, self._turn_s()))
        with self._books:
            self._part(self.clock())  # from whom a sweep gave up: no more is heard
            self._run_commands()
            now = self.clock()  # whatever was said until now is heard before anybody is late
            if self._attendance.was_away():
                self.offers.returned(now)
                self.pulls.returned(now)
            ready = self._waiting.look()
            self._hear_sinks(ready, now)
            self._hear_sources(ready, now)
            self.offers.flush()
            self._answer(now)  # peers wait for it; what follows can
            self._read_mover(self.clock())
            self._make_sums()
            self.offers.expire(now)
            self.pulls.tick(now)
            self._part(now)
            self.offers.flush()
            self._answer(now)
            self._attendance.rests()

    def sweep(self) -> None:
        """Where a turn takes too long: run commands, end what is late, and say so.

        Peers that wait for a word of ours have given us up by then, so no lease is ended that
        somebody still counts on. To be called often, by a thread of its own.
        """
        if not self._attendance.is_stuck(SILENCE_S):
            return
        with self._books:
            if self.late_s < SILENCE_S:
                return  # the turn has ended meanwhile
            self._run_commands()
            now = self.clock()
            self.offers.expire(now)
            self.pulls.give_up(now)
            self._report()

    def end(self) -> None:
        """End every offer and pull, and tell the peers."""
        with self._books:
            self._run_commands()
            now = self.clock()
            self.offers.withdraw_all()
            self.pulls.abandon_all(now=now)
            self._send(now)
            self._report()

    def close(self) -> None:
        """Let go of everything, with no word to anybody; the books are not looked at again."""
        with self._books:
            self._attendance.waits(math.inf)
        self.mover.close()
        self._exchange.close()
        self._awake = True  # nobody is there to be woken
        self._wake.close()
        self._news.close()

    def _turn_s(self) -> float:
        if self.mover.pending or self.offers.missing_sums(1):
            return 0.0
        if self.mover.driven and self.offers.needs_driving(self.clock()):
            return DRIVEN_TURN_S
        return OPEN_TURN_S if self.offers.num_open or self.pulls.num_open else IDLE_TURN_S

    def _wait(self, timeout_s: float) -> None:
        if self.mover.pending:
            self.pause(READING_PAUSE_S)
        self._attendance.waits(timeout_s)
        self._waiting.wait(self.mover.interests, timeout_s)
        self._attendance.works()

    def _run_commands(self) -> None:
        if self._awake:
            self._wake.clear()
            self._awake = False
        while self.commands:
            self.commands.popleft()()

    def _make_sums(self) -> None:
        """Checksums of what is on offer, some in each turn."""
        most = max(1, BYTES_AT_ONCE // max(1, self._sums.block_bytes))
        for order in self.offers.missing_sums(most):
            self.offers.summed(order, self._sums.of(order.blocks, order.level))

    def _hear_sinks(self, ready: Ready, now: float) -> None:
        for peer, message in self._exchange.from_sinks(ready, now):
            if self.commands:  # an offer was posted before anybody could ask for it
                self._run_commands()
            self.offers.heard(peer, message, now=now)

    def _hear_sources(self, ready: Ready, now: float) -> None:
        for address, message in self._exchange.from_sources(ready, now):
            if address in self.pulls.parted:
                continue  # it was given up by what it said before
            try:
                if isinstance(message, Welcome) and not self.pulls.knows(address, message):
                    with self._asking_the_mover():
                        self.mover.meet(address, message)
            except TransferError as error:
                self.pulls.lost(address, error, now=now)
            else:
                if address not in self.pulls.parted:  # given up while it was met
                    self.pulls.heard(address, message, now=now)

    def _read_mover(self, now: float) -> None:
        with self._asking_the_mover():
            ended = self.mover.poll()
        for read_id, error in ended:
            if isinstance(error, PeerUnreachable):
                log.warning("a read failed: %s", error)
            self.pulls.read_done(read_id, error, now=now)
        for address in self.mover.waits_for():
            self.pulls.needs_driving(address, now=now)

    def _part(self, now: float) -> None:
        """Let go of sources that were given up; what was read from them ends."""
        while self.pulls.parted:
            address = self.pulls.parted.pop()
            with self._asking_the_mover():
                self.mover.part(address)
            self._exchange.part(address)
            self._read_mover(now)

    def _send(self, now: float) -> None:
        for peer, answer in self.offers.outbox:
            self._exchange.tell_sink(peer, answer)
        self.offers.outbox.clear()
        sent, self.pulls.outbox = self.pulls.outbox, []
        for address, message in sent:
            try:
                self._exchange.tell_source(address, message, now)
            except PeerUnreachable as error:
                self.pulls.lost(address, error, now=now)

    def _answer(self, now: float) -> None:
        """Say what there is to say, begin reads; what is over by then is said, too."""
        self._send(now)
        if self.pulls.orders:
            orders, self.pulls.orders = self.pulls.orders, []
            with self._asking_the_mover():
                for order in orders:
                    self.mover.read(order)
            self._read_mover(self.clock())
            self._send(now)
        self._report()

    @contextlib.contextmanager
    def _asking_the_mover(self) -> Iterator[None]:
        """It may take long to answer: `sweep` can have the books meanwhile."""
        self._books.release()
        try:
            yield
        finally:
            self._books.acquire()

    def _report(self) -> None:
        if self.queues.take(self.offers, self.pulls):
            self.wake_engine()

    def wake_engine(self) -> None:
        """Make `news_fd` readable."""
        self._news.ring()

    def _welcome(self) -> Welcome:
        me, others = self.identity, self.others
        ours = self.regions[:1] if others else self.regions
        regions = *map(describe, ours), *(other.region for other in others)
        cards = self.mover.card, *(other.card for other in others)
        facts = me.engine_id, me.fingerprint, me.layout
        return Welcome(*facts, regions, cards, this_machine())
