"""The pulls of a sink that have not ended: by ticket, by source, and by what is due next. Pure.

Thousands of jobs may wait for room and hold their tickets meanwhile. A turn of the transfer
thread asks only for what is due, so that it takes no longer for all those that wait.
"""

import math
from collections import OrderedDict
from collections.abc import Iterator, KeysView
from dataclasses import dataclass, field

from kv_transfer.ledger.known_sources import Address
from kv_transfer.ledger.pull import Pull
from kv_transfer.wire import SILENCE_S, Look


@dataclass(slots=True)
class OpenPulls:
    """Every pull from `add` to `remove`."""

    _by_ticket: dict[str, Pull] = field(default_factory=dict)
    _by_source: dict[Address, dict[str, Pull]] = field(default_factory=dict)
    _by_look: OrderedDict[str, Pull] = field(default_factory=OrderedDict)  # the oldest first
    _heard_since: float = math.inf  # no pull was heard of earlier, except failed ones

    def __len__(self) -> int:
        """How many there are."""
        return len(self._by_ticket)

    def __iter__(self) -> Iterator[Pull]:
        """The pulls as of now; they may end meanwhile."""
        return iter(tuple(self._by_ticket.values()))

    def get(self, ticket_id: str) -> Pull | None:
        """The pull of this ticket."""
        return self._by_ticket.get(ticket_id)

    def add(self, pull: Pull) -> None:
        """There must be none of its ticket."""
        ticket_id = pull.ticket.ticket_id
        self._by_ticket[ticket_id] = pull
        self._by_source.setdefault(pull.address, {})[ticket_id] = pull
        self._heard_since = min(self._heard_since, pull.heard_at)

    def remove(self, pull: Pull) -> None:
        """Forget a pull; raises KeyError if it was not added."""
        ticket_id = pull.ticket.ticket_id
        del self._by_ticket[ticket_id]
        self._by_look.pop(ticket_id, None)
        beside = self._by_source[pull.address]
        del beside[ticket_id]
        if not beside:
            del self._by_source[pull.address]

    @property
    def sources(self) -> KeysView[Address]:
        """The addresses that there are pulls from."""
        return self._by_source.keys()

    def at(self, address: Address) -> tuple[Pull, ...]:
        """The pulls from one source, as of now."""
        return tuple(self._by_source.get(address, {}).values())

    def look(self, pull: Pull, *, now: float) -> Look:
        """The Look to send; the next one is due a beat later."""
        self._by_look[pull.ticket.ticket_id] = pull
        self._by_look.move_to_end(pull.ticket.ticket_id)
        return pull.look(now=now)

    def due(self, beat_s: float, *, now: float) -> list[Pull]:
        """Those whose last Look is a beat old, and that need another one."""
        due, over = list[Pull](), list[str]()
        for ticket_id, pull in self._by_look.items():
            if not pull.sends_looks:
                over.append(ticket_id)
            elif pull.is_due(beat_s, now=now):
                due.append(pull)
            else:
                break
        for ticket_id in over:
            del self._by_look[ticket_id]
        return due

    def silent(self, *, now: float) -> list[Pull]:
        """Those that have not failed, and were not heard of for SILENCE_S.

        All are looked at only when one may be silent: what is heard of once is heard of again
        after a beat, so that is seldom.
        """
        if now - self._heard_since < SILENCE_S:
            return []
        alive = [pull for pull in self if pull.error is None]
        self._heard_since = min((pull.heard_at for pull in alive), default=math.inf)
        return [pull for pull in alive if now - pull.heard_at >= SILENCE_S]
