"""The offers of a source that have not settled, and what is still to be done for them. Pure.

There is one for each prompt that waits for its turn or its sink, thousands at times. A turn of
the transfer thread asks only for those that want something.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kv_transfer.blocks.mapping import WHOLE_BLOCKS, BlockMapping
from kv_transfer.checking import CheckLevel
from kv_transfer.ledger.offer import KvOffer


@dataclass(frozen=True, slots=True)
class ChecksumOrder:
    """Blocks of an offer, from the `start`-th on, whose checksums are to be computed
    (KvOffer.next_checksums).

    `seen`: what each checksum covers, a block or a slot of it (blocks/checksum_mapping.py).
    """

    ticket_id: str
    level: CheckLevel
    start: int
    blocks: Sequence[int]
    seen: BlockMapping = WHOLE_BLOCKS


@dataclass(slots=True)
class OpenOffers:
    """Every offer from `add` to `remove`. Whoever changes one calls `note_change`."""

    _by_ticket: dict[str, KvOffer] = field(default_factory=dict)
    _by_outer: dict[str, KvOffer] = field(default_factory=dict)  # the latest of each name
    _want_checksums: dict[str, KvOffer] = field(default_factory=dict)
    _have_news: dict[str, KvOffer] = field(default_factory=dict)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._by_ticket)

    @property
    def ticket_ids(self) -> tuple[str, ...]:
        """The tickets of all, as of now."""
        return tuple(self._by_ticket)

    def get(self, ticket_id: str) -> KvOffer | None:
        """The offer of this ticket."""
        return self._by_ticket.get(ticket_id)

    def ticket_of(self, key: str) -> str:
        """The ticket that a sink means: that of the latest offer with this outer id, if any."""
        named = self._by_outer.get(key)
        return key if named is None else named.ticket_id

    def add(self, offer: KvOffer) -> KvOffer | None:
        """Returns the open offer that had the same outer id until now."""
        self._by_ticket[offer.ticket_id] = offer
        if offer.outer_id is None:
            return None
        older, self._by_outer[offer.outer_id] = self._by_outer.get(offer.outer_id), offer
        return older

    def remove(self, ticket_id: str) -> KvOffer:
        """Forget an offer; raises KeyError if there is none."""
        offer = self._by_ticket.pop(ticket_id)
        self._want_checksums.pop(ticket_id, None)
        self._have_news.pop(ticket_id, None)
        if offer.outer_id is not None and self._by_outer.get(offer.outer_id) is offer:
            del self._by_outer[offer.outer_id]
        return offer

    def note_change(self, offer: KvOffer) -> None:
        """Its blocks, checksums or seal are others than before."""
        if offer.num_ready < len(offer.blocks) or offer.states_left:
            self._want_checksums[offer.ticket_id] = offer
        else:
            self._want_checksums.pop(offer.ticket_id, None)
        if offer.has_news:
            self._have_news[offer.ticket_id] = offer

    @property
    def want_checksums(self) -> bool:
        """Whether there are `missing_checksums`."""
        return bool(self._want_checksums)

    def missing_checksums(self, most: int) -> list[ChecksumOrder]:
        """Blocks that need checksums: `most` in all, shared out, but at least one per offer."""
        each = max(1, most // max(1, len(self._want_checksums)))
        found = list[ChecksumOrder]()
        for name, one in self._want_checksums.items():
            seen, start, blocks = one.next_checksums
            found.append(ChecksumOrder(name, one.level, start, blocks[:each], seen))
        return found

    def take_news(self) -> list[KvOffer]:
        """The offers that have news for their sinks, each once. A sink that comes later asks
        for all there is.
        """
        changed, self._have_news = self._have_news, {}
        return [one for one in changed.values() if one.has_news and one.sink is not None]
