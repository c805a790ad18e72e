"""What a sink has asked other nodes' caches for: each question has one answer, in time."""

import pytest

from kv_transfer.api import Loan
from kv_transfer.ledger.pending_loans import PendingLoans
from kv_transfer.ticket import CacheHint, KvTicket
from kv_transfer.wire import SILENCE_S, Ask, Lent

CACHE = CacheHint("engine", "host", 1, "same")


def asked(*names: str, now: float = 0.0) -> PendingLoans:
    loans = PendingLoans()
    for name in names:
        assert loans.start(name, CACHE, [b"k"], now=now) == Ask(name, "engine", (b"k",))
    return loans


def test_what_is_lent_has_a_ticket_of_the_engine_that_was_asked() -> None:
    loans = asked("q")
    assert loans.take_answer(Lent("q", "loan", 2))
    ticket = KvTicket("loan", "engine", "host", 1, "same")
    assert loans.answered == [Loan("q", ticket, 2)]
    assert not loans.take_answer(Lent("q", "loan", 2))


def test_an_answer_may_be_that_nothing_is_lent() -> None:
    loans = asked("q")
    assert loans.take_answer(Lent("q"))
    assert (loans.answered, len(loans)) == ([Loan("q")], 0)


def test_who_does_not_answer_in_time_lends_nothing() -> None:
    loans = asked("early", now=5.0)
    loans.start("late", CACHE, [], now=6.0)
    loans.expire(5.0 + SILENCE_S - 0.01)
    assert loans.answered == []
    loans.expire(5.0 + SILENCE_S)
    assert (loans.answered, len(loans)) == ([Loan("early")], 1)


def test_all_questions_can_be_ended() -> None:
    loans = asked("q", "r")
    loans.cancel_all()
    assert (loans.answered, len(loans)) == ([Loan("q"), Loan("r")], 0)


def test_a_name_asks_once_at_a_time() -> None:
    loans = asked("q")
    with pytest.raises(ValueError, match="already"):
        loans.start("q", CACHE, [], now=0.0)
    loans.cancel_all()
    loans.start("q", CACHE, [], now=0.0)
