"""What every connector must do for prefix caches: ask, lend; the rest is a hand-over."""

from collections.abc import Iterator

import pytest

from kv_transfer.api import Loan, LoanRequest, Outcome, Sealed
from kv_transfer.errors import TransferError
from kv_transfer.ticket import CacheHint, KvTicket
from kv_transfer.wire import SILENCE_S
from tests.contract.rigs import CONNECTORS, Rig, RigMaker

KEYS = (b"one", b"two", b"three")
SEALED = Sealed(2, 0, tokens_digest=b"two")


@pytest.fixture(params=CONNECTORS)
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    maker: RigMaker = request.param
    with maker() as rig:
        yield rig


def cache(rig: Rig) -> CacheHint:
    """How a proxy names this source: a ticket knows it, too."""
    ticket = rig.source.offer("only to see where it is")
    rig.source.withdraw(ticket.ticket_id)
    assert rig.outcomes() == [Outcome.WITHDRAWN]
    assert ticket.engine_id
    assert ticket.fingerprint
    return CacheHint(ticket.engine_id, ticket.host, ticket.port, ticket.fingerprint)


def ask(rig: Rig, where: CacheHint, name: str = "q") -> LoanRequest:
    rig.sink.request_loan(name, where, KEYS)
    assert rig.arrive() == []
    (asked,) = rig.source.loan_requests()
    return asked


def lent(rig: Rig) -> tuple[Loan, KvTicket]:
    assert rig.arrive() == []
    (loan,) = rig.sink.loans()
    assert loan.ticket is not None
    return loan, loan.ticket


class TestLoans:
    def test_what_is_lent_is_pulled_as_any_other(self, rig: Rig) -> None:
        rig.fill(5, b"a")
        rig.fill(2, b"b")
        asked = ask(rig, cache(rig))
        assert (asked.name, asked.keys) == ("q", KEYS)
        ticket_id = rig.source.lend(asked, "loan", [5, 2], SEALED)
        loan, ticket = lent(rig)
        assert (loan.name, loan.num_blocks, ticket.ticket_id) == ("q", 2, ticket_id)
        rig.sink.pull(ticket, into=[1, 0])
        (arrived,) = rig.arrive()
        assert (arrived.ticket_id, arrived.sealed) == (ticket_id, SEALED)
        assert rig.letters[:2] == b"ba"
        assert rig.outcomes() == [Outcome.DELIVERED]

    def test_nothing_to_lend_is_an_answer(self, rig: Rig) -> None:
        rig.source.decline(ask(rig, cache(rig)))
        assert rig.arrive() == []
        assert rig.sink.loans() == [Loan("q")]
        assert rig.sink.loans() == []

    def test_a_source_that_was_started_anew_has_nothing_to_lend(self, rig: Rig) -> None:
        where = cache(rig)
        other = CacheHint("of yesterday", where.host, where.port, where.fingerprint)
        rig.sink.request_loan("q", other, KEYS)
        assert rig.arrive() == []
        assert rig.source.loan_requests() == []
        assert rig.sink.loans() == [Loan("q")]

    def test_a_loan_that_nobody_comes_for_ends_soon(self, rig: Rig) -> None:
        rig.source.lend(ask(rig, cache(rig)), "loan", [0], SEALED)
        lent(rig)
        rig.advance(SILENCE_S / 2)
        assert rig.outcomes() == []
        rig.advance(SILENCE_S)
        assert rig.outcomes() == [Outcome.EXPIRED]

    def test_a_loan_that_is_not_wanted_is_given_back(self, rig: Rig) -> None:
        rig.source.lend(ask(rig, cache(rig)), "loan", [0], SEALED)
        rig.sink.abandon(lent(rig)[1])
        assert rig.arrive() == []
        assert rig.outcomes() == [Outcome.WITHDRAWN]

    def test_an_answer_that_comes_too_late_is_given_back(self, rig: Rig) -> None:
        asked = ask(rig, cache(rig))
        rig.advance(SILENCE_S)
        assert rig.arrive() == []
        assert rig.sink.loans() == [Loan("q")]
        rig.source.lend(asked, "loan", [0], SEALED)
        assert rig.arrive() == []
        assert rig.sink.loans() == []
        assert rig.outcomes() == [Outcome.WITHDRAWN]

    def test_a_loan_that_is_taken_back_is_void(self, rig: Rig) -> None:
        ticket_id = rig.source.lend(ask(rig, cache(rig)), "loan", [0], SEALED)
        _, ticket = lent(rig)
        rig.source.withdraw(ticket_id)
        rig.sink.pull(ticket, into=[0])
        (arrived,) = rig.arrive()
        assert isinstance(arrived.error, TransferError)
        assert rig.outcomes() == [Outcome.WITHDRAWN]

    def test_a_source_that_is_gone_does_not_leave_a_question_open(self, rig: Rig) -> None:
        where = cache(rig)
        rig.unplug()
        rig.sink.request_loan("q", where, KEYS)
        rig.arrive()
        rig.advance(SILENCE_S)
        rig.arrive()
        assert rig.sink.loans() == [Loan("q")]

    def test_closing_ends_every_question(self, rig: Rig) -> None:
        ask(rig, cache(rig))
        rig.sink.close()
        assert rig.arrive() == []
        assert rig.sink.loans() == [Loan("q")]
