"""What a sink has asked other nodes' caches for, until each has answered. Pure.

    sink                                      source
    Ask(name, keys of blocks, in order) ────▶ its engine holds those that it has
          ◀────────────────────────────────── Lent(ticket, number of blocks), or Lent of none
    … from here on it is an offer like any other, sealed, with SILENCE_S for its first Look …

Either message may be lost; then the asking node goes on without. An answer that is no longer
awaited is abandoned, so that its blocks are not held longer than necessary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kv_transfer.api import Loan
from kv_transfer.ledger.known_sources import Address
from kv_transfer.ticket import CacheHint, KvTicket
from kv_transfer.wire import SILENCE_S, Ask, Lent


@dataclass(slots=True)
class PendingLoans:
    """Every request ends with one entry in `answered`."""

    answered: list[Loan] = field(default_factory=list)
    _open: dict[str, tuple[CacheHint, float]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._open)

    def start(self, name: str, cache: CacheHint, keys: Sequence[bytes], *, now: float) -> Ask:
        """The message to send; raises ValueError if the name is in use."""
        if name in self._open:
            raise ValueError(f"{name} is asked for already")
        self._open[name] = cache, now + SILENCE_S
        return Ask(name, cache.engine_id, tuple(keys))

    def take_answer(self, lent: Lent) -> bool:
        """Record an answer; False if it is not awaited."""
        if lent.name not in self._open:
            return False
        cache, _ = self._open.pop(lent.name)
        ticket = None
        if lent.ticket_id is not None:
            address = cache.host, cache.port
            ticket = KvTicket(lent.ticket_id, cache.engine_id, *address, cache.fingerprint)
        self.answered.append(Loan(lent.name, ticket, lent.num_blocks))
        return True

    def fail_source(self, address: Address) -> None:
        """End all requests to this address without a loan."""
        self._end([name for name, (at, _) in self._open.items() if at.address == address])

    def expire(self, now: float) -> None:
        """End the requests that were not answered in time."""
        self._end([name for name, (_, until) in self._open.items() if until <= now])

    def cancel_all(self) -> None:
        """End all requests without a loan."""
        self._end(list(self._open))

    def _end(self, names: Sequence[str]) -> None:
        for name in names:
            del self._open[name]
            self.answered.append(Loan(name))
