"""A node's offers and pulls, and the order in which a turn works on them.

The transfer thread passes in the messages from its sockets (service.py); a test does so
without sockets.

    begin_turn                  disconnect failed sources; run the engine's commands
    handle_sink_message,
    handle_source_message       what has come, message by message
    finish_turn                 answers, reads, checksums, timeouts; then answers to those

`sweep` and `end` are used in place of a turn.
"""

import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from kv_transfer.blocks.checksums import Checksums
from kv_transfer.errors import PeerUnreachable, TransferError
from kv_transfer.integrity.checked import make_checksums
from kv_transfer.ledger.known_sinks import Peer
from kv_transfer.ledger.known_sources import Address
from kv_transfer.ledger.offers import OfferBook
from kv_transfer.ledger.pulls import PullBook
from kv_transfer.movers.mover import KvReader
from kv_transfer.thread.event_queues import EventQueues
from kv_transfer.wire import FromSink, FromSource, Welcome

STANDSTILL_S = 30.0  # a driver that watches its legs gives them up long before
STANDSTILL = f"the engine there has done nothing for {STANDSTILL_S:g} s"
log = logging.getLogger(__name__)
Command = Callable[[], None]


class PeerSender(Protocol):
    """Sends messages to peers: to sinks by name, to sources by address."""

    def send_to_sink(self, peer: Peer, message: FromSource) -> None:
        """Dropped if the sink is not connected."""

    def send_to_source(self, address: Address, message: FromSink, now: float) -> None:
        """Raises PeerUnreachable if too many messages to it wait."""

    def disconnect(self, address: Address) -> None:
        """Close the connection to this source."""


class WakeSignal(Protocol):
    """Wakes a thread that waits for it."""

    def ring(self) -> None:
        """Wake the thread."""

    def clear(self) -> None:
        """Reset the signal."""


@dataclass(slots=True)
class CommandQueue:
    """Commands that the engine's thread posts and another thread runs."""

    bell: WakeSignal
    _waiting: deque[Command] = field(default_factory=deque)
    _rung: bool = False

    def post(self, command: Command) -> None:
        """Queue a command for the next turn, which begins at once."""
        self._waiting.append(command)
        if not self._rung:
            self._rung = True
            self.bell.ring()

    def run(self) -> None:
        """Run all commands."""
        self.bell.clear()  # always: a `post` may have set `_rung` and ring only after this
        self._rung = False
        while self._waiting:
            self._waiting.popleft()()

    def __bool__(self) -> bool:
        return bool(self._waiting)


@dataclass(slots=True)
class TransferBooks:
    """Sends to peers by `voice`, reads by `mover`; `news` wakes the reader of the queues.

    `engine_seen_at`: when the engine's thread last asked for news, once it has. If it stands
    still, sinks do not wait for what it has not completed.
    """

    offers: OfferBook
    pulls: PullBook
    mover: KvReader
    voice: PeerSender
    sums: Checksums
    commands: CommandQueue
    queues: EventQueues
    news: WakeSignal
    clock: Callable[[], float]
    engine_seen_at: float = math.inf

    def begin_turn(self, *, away: bool = False) -> float:
        """Returns the time for this turn's timeouts. `away`: the thread was stalled."""
        self._part()  # sources that a sweep failed are not heard any more
        self.commands.run()
        now = self.clock()  # messages sent until now are handled before any timeout
        if away:
            self.engine_seen_at = max(self.engine_seen_at, now)
            self.offers.extend_leases(now)
            self.pulls.restart_timeouts(now)
        return now

    def handle_sink_message(self, peer: Peer, message: FromSink, now: float) -> None:
        """Handle one message of a sink."""
        if self.commands:  # an offer is posted before any sink can ask for it
            self.commands.run()
        self.offers.handle_message(peer, message, now=now)

    def handle_source_message(self, address: Address, message: FromSource, now: float) -> None:
        """Handle one message of a source; the mover connects on its first Welcome."""
        if address in self.pulls.to_disconnect:
            return  # given up after an earlier message
        try:
            if isinstance(message, Welcome) and not self.pulls.has_welcome(address, message):
                self.mover.connect(address, message)
        except TransferError as error:
            self.pulls.fail_source(address, error)
        else:
            if address not in self.pulls.to_disconnect:  # given up while connecting
                self.pulls.handle_message(address, message, now=now)

    def finish_turn(self, now: float) -> None:
        """Answer, read, compute checksums, apply timeouts."""
        self.offers.flush()
        self._answer(now)  # peers wait for this; the rest can wait
        self._read_mover()
        self._make_sums()
        self.offers.expire(now)
        if now - self.engine_seen_at >= STANDSTILL_S:
            self.offers.expire_unsealed(STANDSTILL)
        self.pulls.tick(now)
        self._part()
        self.offers.flush()
        self._answer(now)

    def sweep(self) -> None:
        """In place of a turn that does not end: run commands, end what is late, report."""
        self.commands.run()
        now = self.clock()
        self.offers.expire(now)
        self.pulls.fail_silent_pulls(now)
        self._report()

    def end(self) -> None:
        """End every offer and pull, and tell the peers."""
        self.commands.run()
        now = self.clock()
        self.offers.withdraw_all()
        self.pulls.abandon_all(now=now)
        self._send(now)
        self._report()

    def _answer(self, now: float) -> None:
        """Send answers, begin reads, and report what has ended by then."""
        self._send(now)
        if self.pulls.orders:
            orders, self.pulls.orders = self.pulls.orders, []
            for order in orders:
                self.mover.read(order)
            self._read_mover()
            self._send(now)
        self._report()

    def _send(self, now: float) -> None:
        for peer, answer in self.offers.outbox:
            self.voice.send_to_sink(peer, answer)
        self.offers.outbox.clear()
        sent, self.pulls.outbox = self.pulls.outbox, []
        for address, message in sent:
            try:
                self.voice.send_to_source(address, message, now)
            except PeerUnreachable as error:
                self.pulls.fail_source(address, error)

    def _read_mover(self) -> None:
        """Handle the reads that have ended. Some may have begun after the turn did."""
        ended, now = self.mover.poll(), self.clock()
        for read_id, error in ended:
            if isinstance(error, PeerUnreachable):
                log.warning("a read failed: %s", error)
            self.pulls.read_done(read_id, error, now=now)
        for address in self.mover.stalled_sources():
            self.pulls.needs_driving(address, now=now)

    def _make_sums(self) -> None:
        """Compute checksums of blocks on offer, some in each turn."""
        for order in self.offers.missing_checksums(self.sums.blocks_at_once):
            self.offers.add_checksums(order, make_checksums(self.sums, order))

    def _part(self) -> None:
        """Disconnect failed sources, which ends the reads from them."""
        while self.pulls.to_disconnect:
            address = self.pulls.to_disconnect.pop()
            self.mover.disconnect(address)
            self.voice.disconnect(address)
            self._read_mover()

    def _report(self) -> None:
        if self.queues.collect_from(self.offers, self.pulls):
            self.news.ring()
