"""One offer: the blocks that are final, who reads them, and what it was told. Pure.

What it goes through is drawn in state.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kv_transfer.api import Outcome, Sealed
from kv_transfer.ledger.guests import Peer
from kv_transfer.ledger.state import State
from kv_transfer.wire import News

LAST = {
    Outcome.DELIVERED: State.SETTLED,
    Outcome.EXPIRED: State.EXPIRED,
    Outcome.WITHDRAWN: State.WITHDRAWN,
}


@dataclass(slots=True)
class Offer:
    """A ticket between `offer` and its Settled; `sink` asked for it last, by the name `key`."""

    outer_id: str | None
    state: State = State.QUEUED
    blocks: list[int] = field(default_factory=list)
    sealed: Sealed | None = None
    sink: Peer | None = None
    key: str = ""
    told: int = 0  # blocks
    fresh: bool = False  # there is something to tell

    def extend(self, blocks: Sequence[int]) -> None:
        """These are final, too; raises IllegalStep once it is sealed."""
        if not blocks:
            return
        if self.state is not State.FILLING:
            self.state = self.state.to(State.FILLING)
        self.blocks += blocks
        self.fresh = True

    def seal(self, sealed: Sealed) -> None:
        """That is all of them; raises IllegalStep if it was already."""
        self.state = self.state.to(State.SEALED)
        self.sealed, self.fresh = sealed, True
        self._follow()

    def asked(self, sink: Peer, key: str, known: int) -> None:
        """This sink has the ticket now, and the first `known` blocks of it."""
        self.sink, self.key, self.told = sink, key, min(known, len(self.blocks))
        self._follow()

    def end(self, outcome: Outcome) -> None:
        """The blocks are not lent any more."""
        self.state = self.state.to(LAST[outcome])

    def _follow(self) -> None:
        if self.state is State.SEALED and self.sink is not None:
            self.state = self.state.to(State.PULLING)

    def news(self) -> News:
        """What the sink was not told of yet; it counts as told now."""
        start, self.told, self.fresh = self.told, len(self.blocks), False
        return News(self.key, start, tuple(self.blocks[start:]), self.sealed)
