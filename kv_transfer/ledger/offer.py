"""One offer: the blocks that are final, who reads them, and what it was told. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kv_transfer.api import Sealed
from kv_transfer.ledger.guests import Peer
from kv_transfer.wire import News


@dataclass(slots=True)
class Offer:
    """A ticket between `offer` and its Settled; `sink` asked for it last, by the name `key`."""

    outer_id: str | None
    blocks: list[int] = field(default_factory=list)
    sealed: Sealed | None = None
    sink: Peer | None = None
    key: str = ""
    told: int = 0  # blocks
    fresh: bool = False  # there is something to tell

    def extend(self, blocks: Sequence[int]) -> None:
        """These are final, too."""
        self.blocks += blocks
        self.fresh = True

    def seal(self, sealed: Sealed) -> None:
        """That is all of them."""
        self.sealed, self.fresh = sealed, True

    def asked(self, sink: Peer, key: str, known: int) -> None:
        """This sink has the ticket now, and the first `known` blocks of it."""
        self.sink, self.key, self.told = sink, key, min(known, len(self.blocks))

    def news(self) -> News:
        """What the sink was not told of yet; it counts as told now."""
        start, self.told, self.fresh = self.told, len(self.blocks), False
        return News(self.key, start, tuple(self.blocks[start:]), self.sealed)
