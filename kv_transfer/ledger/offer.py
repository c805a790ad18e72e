"""One offer of a source: its final blocks, the sink that reads them, and what that sink knows.

Pure. Its states are drawn in state.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kv_transfer.api import Outcome, Sealed
from kv_transfer.blocks.checksum_mapping import WHOLE_SEQUENCE, SequenceChecksums
from kv_transfer.blocks.mapping import BlockMapping
from kv_transfer.checking import CheckLevel
from kv_transfer.ledger.ended_pulls import OfPull
from kv_transfer.ledger.known_sinks import Peer
from kv_transfer.ledger.state import HandOverState
from kv_transfer.wire import Leave, Look, News

LAST = {
    Outcome.DELIVERED: HandOverState.SETTLED,
    Outcome.EXPIRED: HandOverState.EXPIRED,
    Outcome.WITHDRAWN: HandOverState.WITHDRAWN,
}


@dataclass(slots=True)
class KvOffer:
    """A ticket between `offer` and its Settled. `sink` has it: the last that sent a Look.

    The sink asked by the name `key`, for its pull number `pull`. `former_sinks` lost the ticket
    to a later sink and may not have it back.
    """

    ticket_id: str
    outer_id: str | None
    state: HandOverState = HandOverState.QUEUED
    level: CheckLevel = CheckLevel.OFF
    blocks: list[int] = field(default_factory=list)
    checksums: list[int] = field(default_factory=list)  # of the first blocks; none at level OFF
    state_checksums: list[int] = field(default_factory=list)  # of slots, once it is sealed
    checksum_mapping: SequenceChecksums = WHOLE_SEQUENCE  # which bytes are checksummed
    sealed: Sealed | None = None
    sink: Peer | None = None
    former_sinks: set[Peer] = field(default_factory=set)
    key: str = ""
    pull: int = 0
    num_told: int = 0  # blocks that the sink knows of
    has_news: bool = False  # for the sink

    def extend(self, blocks: Sequence[int]) -> None:
        """Add final blocks; raises IllegalTransition once the offer is sealed."""
        if not blocks:
            return
        if self.state is not HandOverState.FILLING:
            self.state = self.state.to(HandOverState.FILLING)
        self.blocks += blocks
        self.has_news = True

    def seal(self, sealed: Sealed) -> None:
        """All blocks are final; raises IllegalTransition for a second seal."""
        self.state = self.state.to(HandOverState.SEALED)
        self.sealed, self.has_news = sealed, True
        self._follow()

    @property
    def num_ready(self) -> int:
        """Blocks that the sink may be told about; above level OFF, those with checksums."""
        if not self.level:
            return len(self.blocks)
        return len(self.checksums) // self.checksum_mapping.kv.our_slots

    @property
    def next_checksums(self) -> tuple[BlockMapping, int, Sequence[int]]:
        """Those to be computed: what each covers, the number of the first block, the blocks.

        The blocks of a state are counted again, behind all blocks.
        """
        mapping, ready = self.checksum_mapping, self.num_ready
        if mapping.state is None or ready < len(self.blocks):
            return mapping.kv, ready, self.blocks[ready:]
        left = self.states_left
        return mapping.state, ready + mapping.state_blocks - len(left), left

    @property
    def states_left(self) -> Sequence[int]:
        """The blocks of its state whose slots lack checksums, if those need some."""
        mapping = self.checksum_mapping
        if mapping.state is None or self.sealed is None or not self.level:
            return ()
        done = len(self.state_checksums) // mapping.state.our_slots
        return self.blocks[-mapping.state_blocks :][done:]

    def require_checksums(self, level: CheckLevel, mapping: SequenceChecksums) -> None:
        """Blocks need checksums of at least this level, by this mapping; others are dropped."""
        if level > self.level or mapping != self.checksum_mapping:
            self.level, self.checksum_mapping = max(level, self.level), mapping
            self.checksums, self.state_checksums = [], []

    def add_checksums(
        self, wish: tuple[CheckLevel, BlockMapping], start: int, sums: Sequence[int]
    ) -> None:
        """Store `next_checksums` from `start` on, unless the requirement has changed."""
        seen, first, _ = self.next_checksums
        if (wish, start) != ((self.level, seen), first):
            return
        if start < len(self.blocks):
            self.checksums += sums
        else:
            self.state_checksums += sums
        self.has_news = True

    def is_stale(self, sink: Peer, message: OfPull) -> bool:
        """Whether the sink has begun a later pull than the message's, with the same key."""
        is_current_sink = (sink, message.key) == (self.sink, self.key)
        return is_current_sink and message.pull is not None and message.pull < self.pull

    def assign_sink(self, sink: Peer, look: Look) -> None:
        """Give the ticket to this sink, which knows the first `look.known` blocks."""
        if self.sink not in (None, sink):
            self.former_sinks.add(self.sink)
        self.sink, self.key, self.pull = sink, look.key, look.pull
        self.num_told = min(look.known, self.num_ready)
        self._follow()

    def release_claim(self, sink: Peer, leave: Leave) -> bool:
        """Whether the sink had the ticket for this pull. It is nobody's then.

        The state stays as it is: no transition goes back.
        """
        if (sink, leave.key) != (self.sink, self.key) or leave.pull < self.pull:
            return False
        self.sink = None
        return True

    def end(self, outcome: Outcome) -> None:
        """The blocks belong to the engine again."""
        self.state = self.state.to(LAST[outcome])

    def _follow(self) -> None:
        if self.state is HandOverState.SEALED and self.sink is not None:
            self.state = self.state.to(HandOverState.PULLING)

    def ticket_id_beside(self, key: str) -> str | None:
        """The id that a message has beside `key`; None where the key is the ticket id."""
        return None if key == self.ticket_id else self.ticket_id

    def next_news(self) -> News:
        """The blocks that the sink does not know of; from now on they count as known."""
        start, self.num_told, self.has_news = self.num_told, self.num_ready, False
        blocks = tuple(self.blocks[start : self.num_told])
        each = self.checksum_mapping.kv.our_slots
        sums = tuple(self.checksums[start * each :])
        is_whole = self.num_told == len(self.blocks) and not self.states_left
        sealed = self.sealed if is_whole else None
        name = self.ticket_id_beside(self.key)
        facts = self.key, start, blocks, sealed, sums, self.level, name, self.pull
        return News(*facts, each, tuple(self.state_checksums) if sealed else ())
