"""One pull: what its source has announced, what was read, and its state. Pure.

state.py draws the states. Until Arrived the blocks belong to the sink: a read that was started
may write to them, so a failed pull stays in ENDING until the last of its reads has ended. A
ticket that is only held has no blocks yet; if it fails, it waits for the job that pulls it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from kv_transfer.api import Arrived, Outcome, Sealed, TransferStats
from kv_transfer.blocks.mapping import BlockMapping
from kv_transfer.blocks.runs import BlockRuns
from kv_transfer.blocks.sequence_mapping import SequenceMapping
from kv_transfer.checking import CheckLevel, ExpectedChecksum
from kv_transfer.errors import (
    CorruptKv,
    LayoutMismatch,
    LeaseExpired,
    OfferWithdrawn,
    TransferCancelled,
    TransferError,
)
from kv_transfer.ledger.known_sources import Address
from kv_transfer.ledger.state import HandOverState
from kv_transfer.ticket import KvTicket
from kv_transfer.wire import GIVEN_BACK, Abandon, Confirmed, Leave, Look, News, Settle

PullRead = tuple[BlockMapping, BlockRuns, Sequence[ExpectedChecksum]]
"""What to read: a mapping, runs of its slots, and the checksum of each slot, or none."""


@dataclass(slots=True)
class Pull:
    """A ticket between `hold` or `pull` and its Arrived."""

    ticket: KvTicket
    heard_at: float  # when its source last said something about it, or it began
    number: int = 0  # of two pulls under one name, the later has the higher number
    state: HandOverState = HandOverState.QUEUED
    offer_id: str | None = None  # the offer that the ticket's name stands for, once known
    into: Sequence[int] | None = None  # None while it is only held
    theirs: list[int] = field(default_factory=list)  # the source's blocks, in order
    # of each slot of `theirs`, or of none
    checks: list[ExpectedChecksum] = field(default_factory=list)
    # of each slot of a state that is read in pieces
    state_checks: list[ExpectedChecksum] = field(default_factory=list)
    level: CheckLevel = CheckLevel.FULL  # the least thorough of the checksums' levels
    skip: int = 0  # blocks of ours that need no read
    ordered: int = 0  # slots (mapping.py) whose read was started, or that need none
    states_ordered: int = 0  # slots of a state that is read in pieces
    in_flight: int = 0  # reads
    left: bool = False  # to another sink, as its source was told
    sealed: Sealed | None = None
    error: TransferError | None = None
    mismatch: CorruptKv | None = None  # its source is asked whether the KV was still there
    looked_at: float = -math.inf
    moving_since: float = 0.0  # while reads are in flight: since when
    num_bytes: int = 0  # read, or being read
    seconds: float = 0.0  # with reads in flight

    @property
    def address(self) -> Address:
        """The address of its source."""
        return self.ticket.host, self.ticket.port

    def begin(self, into: Sequence[int], skip: int) -> None:
        """From now on reads may write to these blocks."""
        self.into, self.skip = into, skip
        self._follow()

    @property
    def is_held(self) -> bool:
        """Whether it is only held, with no blocks to read into."""
        return self.into is None

    @property
    def is_reading(self) -> bool:
        """Whether reads may be ordered."""
        states = HandOverState.FILLING, HandOverState.PULLING
        return self.into is not None and self.mismatch is None and self.state in states

    @property
    def sends_looks(self) -> bool:
        """Whether its source is still to hear of it, from time to time."""
        return self.state not in (HandOverState.SETTLING, HandOverState.ENDING)

    def is_due(self, beat_s: float, *, now: float) -> bool:
        """Whether it is time for a Look, if it sends any."""
        return now - self.looked_at >= beat_s

    def look(self, *, now: float) -> Look:
        """The Look to send; it renews the lease."""
        self.looked_at = now
        known = len(self.theirs)
        return Look(self.ticket.ticket_id, self.ticket.engine_id, known, self.number)

    def abandon(self) -> Abandon:
        """The Abandon to send: the KV is no longer wanted. Of a pull that was left the source
        takes no further word, so this one is of none.
        """
        key, offer_id, number = self._names
        return Abandon(key, offer_id, None if self.left else number)

    def leave(self) -> Leave:
        """The Leave to send: another sink may have the KV."""
        self.left = True
        return Leave(*self._names)

    @property
    def _names(self) -> tuple[str, str | None, int]:
        """How its source identifies the pull: the key, the offer behind it, and the number."""
        key = self.ticket.ticket_id
        return key, None if self.offer_id == key else self.offer_id, self.number

    def concerns(self, message: News | Confirmed) -> bool:
        """Whether the message is about the offer that this pull began with."""
        return self.offer_id in (None, message.ticket_id or message.key)

    def take_news(self, news: News, *, now: float) -> None:
        """Record what is new; if an earlier message was lost, the next Look asks again."""
        if news.start > len(self.theirs):
            return
        self.heard_at, self.offer_id = now, news.ticket_id or news.key
        known = len(self.theirs) - news.start
        self.theirs += news.blocks[known:]
        self.checks += [(news.level, told) for told in news.sums[known * news.slots :]]
        if news.state_sums:
            self.state_checks = [(news.level, told) for told in news.state_sums]
        if news.blocks or news.state_sums:
            self.level = min(self.level, news.level)
        self.sealed = news.sealed or self.sealed
        self._follow()

    def block_count_error(self, way: SequenceMapping) -> LayoutMismatch | None:
        """The error if the blocks on offer cannot be those that were reserved for."""
        assert self.into is not None
        offered, reserved = len(self.theirs), len(self.into)
        if way.agree(offered, reserved, sealed=self.sealed is not None):
            return None
        return LayoutMismatch(f"{offered} blocks on offer, {reserved} reserved")

    def missing_checksums(self, level: CheckLevel, way: SequenceMapping) -> CorruptKv | None:
        """The error if its blocks cannot be checked as thoroughly as required."""
        wanted = bool(self.checks) or level is not CheckLevel.OFF
        needed = len(self.theirs) * way.kv.their_slots
        states = way.checked_states if self.sealed else 0
        missing = len(self.checks) != needed or len(self.state_checks) < states
        if wanted and (self.level < level or missing):
            return CorruptKv(f"{len(self.theirs)} blocks came without the checksums they need")
        return None

    def why_gone(self, reason: str) -> TransferError:
        """The error behind a Gone. Bytes that do not match are wrong only if they were still
        lent: others may have been written there since.
        """
        if self.mismatch is not None and reason == GIVEN_BACK:
            return self.mismatch
        return (OfferWithdrawn if reason == Outcome.WITHDRAWN else LeaseExpired)(reason)

    def take_read(self, way: SequenceMapping) -> PullRead | None:
        """What can be read and was not ordered yet, which now counts as ordered.

        With one checksum for each slot, or none if the checksums also cover copies of heads
        that are not read. In pieces, no more than a connector lists at a time; the next follows
        when those have arrived. A state comes last, when its source has sealed the offer.
        """
        if not (way.kv.pieces and self.in_flight) and (read := self._take_kv(way)):
            return read
        return self._take_state(way) if self.sealed and not self.in_flight else None

    def _take_kv(self, way: SequenceMapping) -> PullRead | None:
        assert self.into is not None
        start = max(self.ordered, self.skip * way.kv.our_slots)
        runs = way.kv_runs(self.theirs, self.into, start)
        self.ordered = start + runs.total
        return self._read(way.kv, runs, self.checks[start : self.ordered])

    def _take_state(self, way: SequenceMapping) -> PullRead | None:
        if way.state is None:
            return None
        assert self.into is not None
        start = self.states_ordered
        runs = way.state_runs(self.theirs, self.into, start)
        self.states_ordered = start + runs.total
        return self._read(way.state, runs, self.state_checks[start : self.states_ordered])

    def _read(
        self, cut: BlockMapping, runs: BlockRuns, checks: Sequence[ExpectedChecksum]
    ) -> PullRead | None:
        self.num_bytes += runs.total * cut.slot_bytes
        return (cut, runs, checks if cut.is_compared else ()) if runs else None

    def read_begins(self, *, now: float) -> None:
        """Count a read that begins."""
        if self.in_flight == 0:
            self.moving_since = now
        self.in_flight += 1

    def read_ends(self, *, now: float) -> None:
        """Count a read that ended."""
        self.in_flight -= 1
        if self.in_flight == 0:
            self.seconds += now - self.moving_since

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing left to read, now or later."""
        return self.state is HandOverState.PULLING and self.in_flight == 0

    def settle(self, *, now: float) -> Settle:
        """The Settle to send once all blocks are here; its answer must come in time."""
        self.state, self.heard_at = self.state.to(HandOverState.SETTLING), now
        return Settle(*self._names)

    def fail(self, error: TransferError) -> None:
        """Record the first error, which is reported once no read is in flight."""
        if self.error is None:
            self.error, self.state = error, self.state.to(HandOverState.ENDING)

    @property
    def can_end(self) -> bool:
        """Whether it has failed, no read writes to its blocks any more, and a job pulls it."""
        return self.state is HandOverState.ENDING and self.in_flight == 0 and not self.is_held

    def end(self) -> Arrived:
        """The Arrived that ends it."""
        if self.error is not None:
            self.state = self.state.to(_last(self.error))
            return Arrived(self.ticket.ticket_id, error=self.error)
        self.state = self.state.to(HandOverState.SETTLED)
        moved = TransferStats(self.num_bytes, self.seconds)
        return Arrived(self.ticket.ticket_id, self.sealed, stats=moved)

    def _follow(self) -> None:
        """Advance the state as far as the messages received allow."""
        if self.state is HandOverState.QUEUED and self.theirs:
            self.state = self.state.to(HandOverState.FILLING)
        if self.state in (HandOverState.QUEUED, HandOverState.FILLING) and self.sealed:
            self.state = self.state.to(HandOverState.SEALED)
        if self.state is HandOverState.SEALED and not self.is_held:
            self.state = self.state.to(HandOverState.PULLING)


def _last(error: TransferError) -> HandOverState:
    match error:
        case TransferCancelled():
            return HandOverState.WITHDRAWN
        case LeaseExpired():
            return HandOverState.EXPIRED
        case _:
            return HandOverState.FAILED
