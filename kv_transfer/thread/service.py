"""One node's side of the hand-over: both books, the side channel, and a mover, turn by turn.

`SideChannel` carries the messages; `TransferBooks` (books.py) handles them. Everything happens
in `turn`, in one thread; the engine's thread communicates with it by queues. Only `sweep` runs
in another thread: if a turn does not end because the mover does not answer, it handles aborts
and leases, so that no block waits for the turn. It can lock the books whenever the mover or
checksums are at work.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kv_transfer.blocks.checksums import Checksums
from kv_transfer.checking import CheckLevel
from kv_transfer.identity import Identity, this_machine
from kv_transfer.integrity.checked import CheckedMover
from kv_transfer.integrity.checksums import BlockChecksums
from kv_transfer.ledger.offers import OfferBook
from kv_transfer.ledger.pulls import PullBook
from kv_transfer.movers.mover import Mover
from kv_transfer.movers.remote_messages import RankIntroduction
from kv_transfer.regions import Region, describe
from kv_transfer.side_channel.channel import SideChannel
from kv_transfer.side_channel.server import SideChannelServer
from kv_transfer.side_channel.wakeup import Wakeup
from kv_transfer.thread.books import Command, CommandQueue, TransferBooks
from kv_transfer.thread.event_queues import EventQueues
from kv_transfer.thread.lock_releasing import LockReleasingChecksums, LockReleasingReader
from kv_transfer.thread.watchdog import TurnWatchdog
from kv_transfer.wire import SILENCE_S, Hello, Welcome

IDLE_TURN_S = 5.0
OPEN_TURN_S = 0.05
DRIVEN_TURN_S = 0.001  # while a sink may need our agent to be polled
READING_PAUSE_S = 0.0001  # between two polls of our reads: the engine needs the GIL

Clock = Callable[[], float]


@dataclass
class TransferService:
    """Owns the sockets and the mover from construction to `close`."""

    identity: Identity
    regions: Sequence[Region]
    mover: Mover
    reception: SideChannelServer
    level: CheckLevel = CheckLevel.OFF
    sums: Checksums | None = None  # None: all regions can be read from here
    clock: Clock = time.monotonic
    pause: Callable[[float], None] = time.sleep
    queues: EventQueues = field(default_factory=EventQueues)
    # other ranks of this node, whose memory has its own agents
    other_ranks: Sequence[RankIntroduction] = ()

    def __post_init__(self) -> None:
        me = self.identity
        facts = me.fingerprint, me.layout, me.engine_id, self.level
        self.offers = OfferBook(self._welcome, *facts)
        self.pulls = PullBook(Hello(me.fingerprint, me.layout, self.level))
        sums = self.sums or BlockChecksums(self.regions)
        self.mover: Mover = CheckedMover(self.mover, sums)
        self._exchange = SideChannel(self.reception, me.engine_id.encode())
        self._wake, self._news, self._waiting = Wakeup(), Wakeup(), self.reception.waiting
        self._waiting.watch(self._wake.fileno())
        self._lock = threading.Lock()  # protects the books
        self._attendance = TurnWatchdog(lambda: self.clock(), self.clock())
        self.commands = CommandQueue(self._wake)
        self.books = TransferBooks(
            self.offers,
            self.pulls,
            LockReleasingReader(self.mover, self._lock),
            self._exchange,
            LockReleasingChecksums(sums, self._lock),
            self.commands,
            self.queues,
            self._news,
            lambda: self.clock(),
        )

    @property
    def late_s(self) -> float:
        """For how long the current wait or turn has been overdue."""
        return self._attendance.late_s

    @property
    def refused_connections(self) -> Mapping[str, int]:
        """How many connections of sinks were refused since the start, by reason."""
        return dict(self._exchange.refused)  # the transfer thread counts meanwhile

    def post(self, command: Command) -> None:
        """Called by the engine's thread: run this in the next turn, which begins at once."""
        self.commands.post(command)

    @property
    def news_fd(self) -> int:
        """Readable while there is something in `queues`."""
        return self._news.fileno()

    def clear_news(self) -> None:
        """Called by the engine's thread before it reads `queues`."""
        self._news.clear()

    def turn(self, longest_s: float = IDLE_TURN_S) -> None:
        """Wait for something to happen, at most `longest_s`; then do all that follows."""
        self._wait(min(longest_s, self._turn_s()))
        with self._lock:
            now = self.books.begin_turn(away=self._attendance.was_away())
            ready = self._waiting.ready_now()
            for peer, said in self._exchange.receive_from_sinks(ready, now):
                self.books.handle_sink_message(peer, said, now)
            for address, told in self._exchange.receive_from_sources(ready, now):
                self.books.handle_source_message(address, told, now)
            self.books.finish_turn(now)
            self._attendance.end_turn()

    def sweep(self) -> None:
        """If a turn takes too long: run commands, end what is late, and report it.

        By then, peers that wait for an answer of ours have given up, so no lease is ended that
        a peer still relies on. Call it often, from a separate thread.
        """
        if not self._attendance.is_stuck(SILENCE_S):
            return
        with self._lock:
            if self.late_s >= SILENCE_S:  # the turn has not ended meanwhile
                self.books.sweep()

    def end(self) -> None:
        """End every offer and pull, and tell the peers."""
        with self._lock:
            self.books.end()

    def close(self) -> None:
        """Release everything without telling any peer; the books are not used again."""
        with self._lock:
            self._attendance.begin_wait(math.inf)
        self.mover.close()
        self._exchange.close()
        self._wake.close()
        self._news.close()

    def _turn_s(self) -> float:
        if self.mover.pending or self.offers.wants_checksums:
            return 0.0
        if self.mover.needs_polling and self.offers.needs_driving(self.clock()):
            return DRIVEN_TURN_S
        return OPEN_TURN_S if self.offers.num_open or self.pulls.num_open else IDLE_TURN_S

    def _wait(self, timeout_s: float) -> None:
        if self.mover.pending:
            self.pause(READING_PAUSE_S)
        self._attendance.begin_wait(timeout_s)
        self._waiting.wait(self.mover.interests, timeout_s)
        self._attendance.begin_work()

    def wake_engine(self) -> None:
        """Make `news_fd` readable."""
        self._news.ring()

    def _welcome(self) -> Welcome:
        me, others = self.identity, self.other_ranks
        ours = self.regions[:1] if others else self.regions
        regions = *map(describe, ours), *(other.region for other in others)
        cards = self.mover.card, *(other.card for other in others)
        facts = me.engine_id, me.fingerprint, me.layout
        return Welcome(*facts, regions, cards, this_machine())
