"""A mover in another process: both ends of the socket between that process and ours.

The other process has a rank's KV memory and the agent for it; ours has the books. Calls of the
mover are forwarded there, and reads that ended are reported back. Errors that a call there
raises at once, such as from `connect`, appear here at the first read.
"""

import math
import select
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import msgspec

from kv_transfer.blocks.checksums import Checksums
from kv_transfer.blocks.mapping import BlockMapping
from kv_transfer.checking import CheckLevel
from kv_transfer.errors import (
    MalformedTicket,
    PeerUnreachable,
    TransferCancelled,
    TransferError,
)
from kv_transfer.ledger.known_sources import Address
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.movers.mover import Interest, Mover, ReadEnd
from kv_transfer.movers.remote_messages import (
    ChecksumCommand,
    ChecksumReport,
    ConnectCommand,
    DisconnectCommand,
    FromMover,
    Ping,
    ProgressCommand,
    RankIntroduction,
    ReadCommand,
    ReadReport,
    ToMover,
)
from kv_transfer.regions import Region, describe
from kv_transfer.wire import Welcome

REST_S = 5.0
DRIVE_S = 0.001  # no agent needs to make progress for its peers more often
ASK_S = 1.0  # between two pings, if there was no other answer
STUCK_S = 15.0  # without an answer
AWAY_S = 10.0  # between two polls: this process was suspended or starved; idle turns are 5 s
PAUSE_S = 0.0001  # between two polls of reads that nothing announces


KINDS: Mapping[str, type[TransferError]] = {
    one.kind: one for one in (PeerUnreachable, TransferCancelled, MalformedTicket)
}
_to_mover = msgspec.msgpack.Decoder(ToMover)
_from_mover = msgspec.msgpack.Decoder(FromMover)


class RankStuck(RuntimeError):
    """Another process of this node does not answer: the node has to end."""


@dataclass(slots=True)
class RemoteMover:
    """See Mover; the mover itself is in the other process, which sent `introduced`.

    This process ends if the other one does, by a lifeline. Until then the mover behaves like
    one that is stalled and whose reads do not end. Time for which our own process was away is
    not counted against it: they are suspended together.
    """

    line: Connection
    introduced: RankIntroduction
    clock: Callable[[], float] = time.monotonic
    _waits: tuple[Address, ...] = ()
    _driven_at: float = -math.inf
    _asked_at: float = -math.inf  # when the last ping was sent; later by what we were away
    _polled_at: float = math.inf  # none yet
    _answered: bool = True
    # reports that came before checksums that were waited for
    _early: deque[ReadReport] = field(default_factory=deque)

    @classmethod
    def over(cls, line: Connection) -> "RemoteMover":
        """Wait until the other process is ready."""
        return cls(line, msgspec.msgpack.decode(line.recv_bytes(), type=RankIntroduction))

    @property
    def card(self) -> bytes:
        """See Mover, here and below."""
        return self.introduced.card

    @property
    def needs_polling(self) -> bool:
        """As the other process reported."""
        return self.introduced.driven

    @property
    def pending(self) -> bool:
        """False: the other process advances its reads by itself."""
        return False

    @property
    def interests(self) -> Mapping[int, Interest]:
        """The socket to the other process."""
        return {self.line.fileno(): select.POLLIN}

    def connect(self, address: Address, welcome: Welcome) -> None:
        """If it fails, that appears at the first read."""
        self._tell(ConnectCommand(address, welcome))

    def disconnect(self, address: Address) -> None:
        """See Mover, here as well."""
        self._tell(DisconnectCommand(address))

    def read(self, order: ReadOrder) -> None:
        """Begin a read in the other process."""
        self._tell(ReadCommand.of(order))

    def poll(self) -> Sequence[ReadEnd]:
        """Reads that ended since the last call; also has the other mover make progress for its
        peers.

        Raises RankStuck if the other process does not answer: its reads may never end, and
        their blocks can never be released.
        """
        ended, self._waits = list[ReadEnd](), ()
        for news in self._news():
            ended += [(one, _error(kind, words)) for one, kind, words in news.ended]
            self._waits += news.waits_for
            self._answered = True
        now = self.clock()
        if self.needs_polling and now - self._driven_at >= DRIVE_S:
            self._driven_at = now
            self._tell(ProgressCommand())
        if (away_s := now - self._polled_at) >= AWAY_S:
            self._asked_at += away_s
        self._polled_at = now
        self._ask(now)
        return ended

    def stalled_sources(self) -> Collection[Address]:
        """As the other process last reported."""
        return self._waits

    def request_checksums(
        self, cut: BlockMapping | None, slots: Sequence[Sequence[int]], level: CheckLevel
    ) -> None:
        """Of images that `cut` assembles from its region; without a cut, of blocks."""
        self._tell(ChecksumCommand(cut, tuple(map(tuple, slots)), level))

    def receive_checksums(self) -> list[int]:
        """The answer to the oldest request; raises RankStuck if it does not come."""
        silent = 0
        with suppress(EOFError, OSError):
            while silent < STUCK_S / ASK_S:  # waits, however late each of them is over
                if not self.line.poll(ASK_S):
                    silent += 1
                    continue
                news = _from_mover.decode(self.line.recv_bytes())
                if isinstance(news, ChecksumReport):
                    return list(news.sums)
                self._early.append(news)
        raise RankStuck("a rank does not say its checksums")

    def close(self) -> None:
        """Close the socket; the other mover ends with its process."""
        self.line.close()

    def _ask(self, now: float) -> None:
        if not self._answered:
            if now - self._asked_at >= STUCK_S:
                raise RankStuck(f"a rank's mover has said nothing for {STUCK_S} s")
        elif now - self._asked_at >= ASK_S:
            self._asked_at, self._answered = now, False
            self._tell(Ping())

    def _news(self) -> Iterator[ReadReport]:
        while self._early:
            yield self._early.popleft()
        with suppress(EOFError, OSError):
            while self.line.poll():
                news = _from_mover.decode(self.line.recv_bytes())
                assert isinstance(news, ReadReport), "sums are waited for"
                yield news

    def _tell(self, message: ToMover) -> None:
        with suppress(OSError):
            self.line.send_bytes(msgspec.msgpack.encode(message))


@dataclass(slots=True)
class MoverServer:
    """The other end: a mover of one region, driven by the messages of a RemoteMover."""

    line: Connection
    mover: Mover
    region: Region
    sums: Checksums

    @property
    def introduced(self) -> RankIntroduction:
        """The first message."""
        return RankIntroduction(
            describe(self.region), self.mover.card, self.mover.needs_polling
        )

    def introduce(self) -> None:
        """Send the first message."""
        self.line.send_bytes(msgspec.msgpack.encode(self.introduced))

    def run(self) -> None:
        """Serve until the other end is gone; then raises EOFError or OSError."""
        while True:
            self._wait()
            self.turn()

    def turn(self) -> None:
        """Handle the messages that have come, and report reads that ended."""
        asked = False
        while self.line.poll():
            message = _to_mover.decode(self.line.recv_bytes())
            asked = asked or isinstance(message, Ping)
            self._do(message)
        ended = tuple(_words(*one) for one in self.mover.poll())
        waits = tuple(self.mover.stalled_sources())
        if ended or waits or asked:
            self.line.send_bytes(msgspec.msgpack.encode(ReadReport(ended, waits)))

    def _wait(self) -> None:
        if self.mover.pending:
            time.sleep(PAUSE_S)  # other threads of this process need the GIL
            return
        poller = select.poll()
        poller.register(self.line.fileno(), select.POLLIN)
        for fd, what in self.mover.interests.items():
            poller.register(fd, what)
        poller.poll(REST_S * 1000)

    def _do(self, message: ToMover) -> None:
        if isinstance(message, ReadCommand):
            self.mover.read(message.order)
        elif isinstance(message, ChecksumCommand):
            found = tuple(_sums_of(self.sums, message))
            self.line.send_bytes(msgspec.msgpack.encode(ChecksumReport(found)))
        elif isinstance(message, DisconnectCommand):
            self.mover.disconnect(message.address)
        elif isinstance(message, ConnectCommand):
            try:
                self.mover.connect(message.address, message.welcome)
            except TransferError:
                self.mover.disconnect(message.address)  # so that its reads fail


def _sums_of(sums: Checksums, asked: ChecksumCommand) -> Sequence[int]:
    if asked.cut is None:
        return sums.of([block for (block,) in asked.slots], asked.level)
    return sums.of_pieces(asked.cut, asked.slots, asked.level)


def _words(read_id: int, error: TransferError | None) -> tuple[int, str | None, str]:
    return read_id, None if error is None else error.kind, str(error or "")


def _error(kind: str | None, words: str) -> TransferError | None:
    if kind is None:
        return None
    return KINDS.get(kind, PeerUnreachable)(words)
