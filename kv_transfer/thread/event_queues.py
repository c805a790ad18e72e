"""Queues from the transfer thread to the engine's thread, each read by one call."""

from collections import deque
from dataclasses import dataclass, field
from typing import TypeVar

from kv_transfer.api import Arrived, Loan, LoanRequest, Settled
from kv_transfer.ledger.offers import OfferBook
from kv_transfer.ledger.pulls import PullBook

MOST_LOAN_REQUESTS = 1024  # that wait for the engine; the latest are kept
News = TypeVar("News")


@dataclass(frozen=True, slots=True)
class EventQueues:
    """Filled by `collect_from` in one thread, emptied in another."""

    settled: deque[Settled] = field(default_factory=deque)
    arrived: deque[Arrived] = field(default_factory=deque)
    loan_requests: deque[LoanRequest] = field(
        default_factory=lambda: deque(maxlen=MOST_LOAN_REQUESTS)
    )
    loans: deque[Loan] = field(default_factory=deque)

    def collect_from(self, offers: OfferBook, pulls: PullBook) -> bool:
        """Move the books' events into the queues; returns whether there were any."""
        news = [
            _hand_on(offers.settled, self.settled),
            _hand_on(offers.loan_requests, self.loan_requests),
            _hand_on(pulls.arrived, self.arrived),
            _hand_on(pulls.pending_loans.answered, self.loans),
        ]
        return any(news)


def _hand_on(told: list[News], queue: deque[News]) -> bool:
    fresh = bool(told)
    queue.extend(told)
    told.clear()
    return fresh
