"""A ticket that changes hands: another sink takes it, or the first one leaves it."""

import pytest

from kv_transfer.api import Outcome, Settled
from kv_transfer.ledger.offers import OfferBook
from kv_transfer.ticket import LEASE_S
from kv_transfer.wire import SILENCE_S, Confirmed, Gone, Leave, Look, News, Settle
from tests.unit.test_offers import SEALED, A, B, enter, look, said
from tests.unit.test_offers import book as book


def test_a_sink_whose_ticket_was_taken_is_never_confirmed(book: OfferBook) -> None:
    """It may have been stopped in the middle of its copy, and go on long after."""
    enter(book)
    enter(book, B)
    book.offer("t", None)
    book.extend("t", [1])
    look(book)
    book.seal("t", SEALED, now=0)
    look(book, B)
    said(book)
    book.handle_message(A, Settle("t"), now=0)
    assert said(book) == [(A, Gone("t", "another sink has asked for it"))]
    assert book.settled == []
    book.handle_message(B, Settle("t"), now=0)
    assert said(book) == [(B, Confirmed("t"))]
    assert book.settled == [Settled("t", Outcome.DELIVERED)]


def test_a_sink_that_lost_a_ticket_does_not_get_it_by_a_later_pull(book: OfferBook) -> None:
    enter(book)
    enter(book, B)
    book.offer("t", None)
    for peer in (A, B):
        look(book, peer)
    assert look(book, pull=1) == [(A, Gone("t", "another sink has asked for it", 1))]
    book.handle_message(B, Leave("t"), now=0)
    assert look(book, pull=2) == [(A, Gone("t", "another sink has asked for it", 2))]


def test_what_was_asked_for_before_it_was_sealed_needs_no_other_look(book: OfferBook) -> None:
    enter(book)
    book.offer("t", None)
    look(book)
    book.seal("t", SEALED, now=0)
    book.handle_message(A, Settle("t"), now=0)
    assert said(book) == [(A, Confirmed("t"))]


@pytest.mark.parametrize(("again", "pull"), [(A, 1), (B, 0)])
def test_a_ticket_that_was_left_is_as_if_nobody_had_asked(
    book: OfferBook, again: bytes, pull: int
) -> None:
    enter(book)
    enter(book, B)
    book.offer("t", None)
    look(book)
    book.handle_message(A, Leave("t"), now=1)
    book.expire(100)  # nothing is sealed: there is no hurry
    book.extend("t", [1])
    book.seal("t", SEALED, now=100)
    book.flush()
    assert said(book) == []
    book.handle_message(again, Look("t", "engine", 0, pull), now=100 + LEASE_S - 1)
    assert said(book) == [(again, News("t", 0, (1,), SEALED, pull=pull))]


@pytest.mark.parametrize("early", [False, True])
def test_a_look_that_comes_after_it_was_left_does_not_take_it_back(
    book: OfferBook, early: bool
) -> None:
    """Over a connection that its sink has let go of, or for the second time."""
    enter(book)
    enter(book, B)
    book.offer("t", None)
    book.seal("t", SEALED, now=0)
    if not early:
        look(book)
    book.handle_message(A, Leave("t"), now=0)
    late = [(A, Gone("t", "its sink has left it"))]
    assert look(book, now=1) == late
    book.expire(LEASE_S - 1)
    assert book.settled == []
    look(book, B, now=2)
    assert look(book, now=2) == late  # nor from who has it now
    book.handle_message(B, Settle("t"), now=2)
    assert said(book) == [(B, Confirmed("t"))]


def test_what_is_late_of_a_sinks_first_pull_is_not_of_its_second(book: OfferBook) -> None:
    enter(book)
    book.offer("t", None)
    book.extend("t", [1, 2])
    book.seal("t", SEALED, now=0)
    look(book)
    book.handle_message(A, Look("t", "engine", 0, pull=3), now=0)
    said(book)
    assert look(book, known=2) == []
    book.handle_message(A, Leave("t"), now=0)
    book.handle_message(A, Settle("t"), now=0)
    assert said(book) == [(A, Gone("t", "its sink has left it"))]
    book.handle_message(A, Settle("t", pull=3), now=0)
    assert said(book) == [(A, Confirmed("t", pull=3))]


def test_the_numbers_of_pulls_are_each_sinks_own(book: OfferBook) -> None:
    """One that has pulled less often has no less of a claim."""
    enter(book)
    enter(book, B)
    book.offer("t", None)
    look(book, pull=5)
    assert look(book, B, pull=2) == [
        (A, Gone("t", "another sink has asked for it", 5)),
        (B, News("t", 0, (), pull=2)),
    ]


@pytest.mark.parametrize(("peer", "pull"), [(B, 3), (A, 2)])
def test_only_the_pull_that_has_a_ticket_settles_it(
    book: OfferBook, peer: bytes, pull: int
) -> None:
    """Neither a sink that never asked nor an earlier pull, of which the source knows no end."""
    enter(book)
    enter(book, B)
    book.offer("t", None)
    book.seal("t", SEALED, now=0)
    look(book, pull=3)
    book.handle_message(peer, Settle("t", pull=pull), now=0)
    assert said(book) == [(peer, Gone("t", "another sink has asked for it", pull))]
    book.handle_message(A, Settle("t", pull=3), now=0)
    assert said(book) == [(A, Confirmed("t", pull=3))]


def test_a_sink_may_read_one_offer_by_two_names(book: OfferBook) -> None:
    """Neither of its pulls is late because of the other one."""
    enter(book)
    book.offer("t", "outer")
    book.extend("t", [1])
    book.handle_message(A, Look("t", "engine", 0, pull=5), now=0)
    said(book)
    assert look(book, key="outer") == [(A, News("outer", 0, (1,), ticket_id="t"))]
    book.handle_message(A, Leave("t", pull=5), now=0)
    book.extend("t", [2])
    book.flush()
    assert said(book) == [(A, News("outer", 1, (2,), ticket_id="t"))]
    assert look(book, key="outer", known=2) == [(A, News("outer", 2, (), ticket_id="t"))]


def test_a_sealed_ticket_that_was_left_waits_once_more_for_a_whole_lease(
    book: OfferBook,
) -> None:
    enter(book)
    book.offer("t", None)
    look(book)
    book.seal("t", SEALED, now=0)
    book.handle_message(A, Leave("t"), now=1)
    book.handle_message(A, Leave("t"), now=2)  # said twice, it counts once
    book.expire(LEASE_S)
    assert book.settled == []
    book.expire(1 + LEASE_S)
    assert book.settled == [Settled("t", Outcome.EXPIRED)]


def test_only_who_has_a_ticket_can_leave_it(book: OfferBook) -> None:
    enter(book)
    enter(book, B)
    book.offer("t", None)
    look(book, B)
    book.handle_message(A, Leave("t"), now=0)
    book.expire(SILENCE_S)
    assert book.settled == [Settled("t", Outcome.EXPIRED)]


def test_a_sink_that_was_forgotten_meanwhile_can_leave_what_it_has(book: OfferBook) -> None:
    """Or nobody else could take the ticket, and the prompt would be run again."""
    book.known_sinks.most = 1
    enter(book)
    book.offer("t", None)
    look(book)
    enter(book, B)
    book.handle_message(A, Leave("t"), now=0)
    book.expire(SILENCE_S)
    assert look(book, B, now=SILENCE_S) == [(B, News("t", 0, ()))]


def test_what_is_late_of_a_pull_stays_late_when_an_earlier_one_is_left(book: OfferBook) -> None:
    """The earlier farewell came over a connection that its sink has let go of."""
    enter(book)
    book.offer("t", None)
    for left in (3, 2):
        book.handle_message(A, Leave("t", pull=left), now=0)
    for pull in (2, 3):
        assert look(book, pull=pull) == [(A, Gone("t", "its sink has left it", pull))]
    assert look(book, pull=4) == [(A, News("t", 0, (), pull=4))]


def test_what_is_over_cannot_be_left(book: OfferBook) -> None:
    enter(book)
    book.handle_message(A, Leave("t"), now=0)
    assert (said(book), book.settled) == ([], [])


def test_a_name_that_changes_hands_is_nothing_to_who_does_not_read_by_it(
    book: OfferBook,
) -> None:
    """One sink has the oldest offer by its ticket; another one left the offer after that."""
    enter(book)
    enter(book, B)
    book.offer("t", "outer")
    look(book)
    book.offer("u", "outer")
    assert said(book) == []
    look(book, B, "outer")
    book.handle_message(B, Leave("outer", "u"), now=0)
    book.offer("v", "outer")
    assert said(book) == []
    book.extend("t", [1])
    book.flush()
    assert said(book) == [(A, News("t", 0, (1,)))]
