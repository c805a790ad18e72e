"""One offer: the blocks that are final, who reads them, and what it was told. Pure.

What it goes through is drawn in state.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kv_transfer.api import Outcome, Sealed
from kv_transfer.blocks.mapping import WHOLE_BLOCKS, BlockMapping
from kv_transfer.checking import CheckLevel
from kv_transfer.ledger.known_sinks import ChecksumSpec, Peer
from kv_transfer.ledger.state import HandOverState
from kv_transfer.wire import Gone, Look, News, Settle

LAST = {
    Outcome.DELIVERED: HandOverState.SETTLED,
    Outcome.EXPIRED: HandOverState.EXPIRED,
    Outcome.WITHDRAWN: HandOverState.WITHDRAWN,
}


@dataclass(slots=True)
class KvOffer:
    """A ticket between `offer` and its Settled; `sink` asked for it last, by the name `key`.

    `pull` is the number of its pull. Those before it are `former` ones, and have lost it for
    good; for those who `left` it, pulls up to a number are over.
    """

    ticket_id: str
    outer_id: str | None
    state: HandOverState = HandOverState.QUEUED
    level: CheckLevel = CheckLevel.OFF
    blocks: list[int] = field(default_factory=list)
    sums: list[int] = field(default_factory=list)  # of the first of them, unless it is OFF
    seen: BlockMapping = WHOLE_BLOCKS  # of a block: how many slots have a checksum of their own
    sealed: Sealed | None = None
    sink: Peer | None = None
    former: set[Peer] = field(default_factory=set)
    left: dict[tuple[Peer, str], int] = field(default_factory=dict)  # by sink and key
    key: str = ""
    pull: int = 0
    told: int = 0  # blocks
    fresh: bool = False  # there is something to tell

    def extend(self, blocks: Sequence[int]) -> None:
        """These are final, too; raises IllegalTransition once it is sealed."""
        if not blocks:
            return
        if self.state is not HandOverState.FILLING:
            self.state = self.state.to(HandOverState.FILLING)
        self.blocks += blocks
        self.fresh = True

    def seal(self, sealed: Sealed) -> None:
        """That is all of them; raises IllegalTransition if it was already."""
        self.state = self.state.to(HandOverState.SEALED)
        self.sealed, self.fresh = sealed, True
        self._follow()

    @property
    def num_ready(self) -> int:
        """How many blocks can be told of: with their checksums, if they are to have any."""
        return len(self.sums) // self.seen.our_slots if self.level else len(self.blocks)

    def look_closer(self, level: CheckLevel, seen: BlockMapping) -> None:
        """Its blocks need checksums of this level at least, and of what is seen of them so."""
        if level > self.level or seen != self.seen:
            self.level, self.seen, self.sums = max(level, self.level), seen, []

    def summed(self, wish: ChecksumSpec, start: int, sums: Sequence[int]) -> None:
        """Blocks from `start` on have these checksums, unless others are needed by now."""
        if (wish, start) == ((self.level, self.seen), self.num_ready):
            self.sums += sums
            self.fresh = True

    def comes_late(self, sink: Peer, said: Look | Settle) -> bool:
        """Whether this is of a pull that its sink has left, or after which it began another."""
        is_latest = (sink, said.key) == (self.sink, self.key)
        latest = self.pull if is_latest else 0
        return said.pull < latest or said.pull <= self.left.get((sink, said.key), -1)

    def asked(self, sink: Peer, look: Look) -> None:
        """This sink has the ticket now, and the blocks of it that it knows."""
        if self.sink not in (None, sink):
            self.former.add(self.sink)
        self.sink, self.key, self.pull = sink, look.key, look.pull
        self.told = min(look.known, self.num_ready)
        self._follow()

    def leave(self, sink: Peer, key: str, pull: int) -> bool:
        """This pull is over, as if it had never asked, but for the state: nothing goes back.

        Whether it had the ticket.
        """
        self.left[sink, key] = max(pull, self.left.get((sink, key), pull))
        if (sink, key) != (self.sink, self.key) or pull < self.pull:
            return False
        self.sink = None
        return True

    def end(self, outcome: Outcome) -> None:
        """The blocks are not lent any more."""
        self.state = self.state.to(LAST[outcome])

    def _follow(self) -> None:
        if self.state is HandOverState.SEALED and self.sink is not None:
            self.state = self.state.to(HandOverState.PULLING)

    def name_for(self, key: str) -> str | None:
        """What to tell who knows it by this key."""
        return None if key == self.ticket_id else self.ticket_id

    def news(self) -> News:
        """What the sink was not told of yet; it counts as told now."""
        start, self.told, self.fresh = self.told, self.num_ready, False
        blocks = tuple(self.blocks[start : self.told])
        each = self.seen.our_slots
        sums = tuple(self.sums[start * each : self.told * each])
        sealed = self.sealed if self.told == len(self.blocks) else None
        name = self.name_for(self.key)
        facts = self.key, start, blocks, sealed, sums, self.level, name, self.pull
        return News(*facts, each)

    def gone(self, reason: str) -> Gone:
        """What to tell its sink, which has it no more."""
        return Gone(self.key, reason, self.pull)
