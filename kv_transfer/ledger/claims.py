"""What a sink can refuse at once, before anything is sent."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kv_transfer.api import Arrived
from kv_transfer.errors import LayoutMismatch, TicketInUse
from kv_transfer.ticket import KvTicket


@dataclass(slots=True)
class PullClaims:
    """The tickets that are being pulled, each by one pull at a time."""

    fingerprint: str
    _taken: set[str] = field(default_factory=set)

    def take(self, ticket: KvTicket) -> None:
        """Claim the ticket; raises LayoutMismatch or TicketInUse."""
        if ticket.fingerprint not in (None, self.fingerprint):
            theirs = ticket.fingerprint
            raise LayoutMismatch(f"fingerprint is {theirs} there and {self.fingerprint} here")
        if ticket.ticket_id in self._taken:
            raise TicketInUse(ticket.ticket_id)
        self._taken.add(ticket.ticket_id)

    def drop(self, news: Sequence[Arrived]) -> None:
        """Release the claims of pulls that have ended."""
        self._taken.difference_update(arrived.ticket_id for arrived in news)
