"""A request's id may name one offer after another: what is said of one is not of the next."""

import pytest

from kv_transfer.api import Arrived, Outcome, Sealed, Settled, TransferStats
from kv_transfer.errors import LeaseExpired, TransferCancelled
from kv_transfer.ledger.ended_pulls import EndedPulls
from kv_transfer.ledger.offers import OfferBook
from kv_transfer.ledger.pulls import PullBook
from kv_transfer.ticket import KvTicket
from kv_transfer.wire import (
    SILENCE_S,
    Abandon,
    Confirmed,
    Gone,
    Hello,
    Leave,
    Look,
    News,
    Settle,
    Stranger,
)
from tests.unit.test_offers import LAYOUT, SEALED, WELCOME, A, B, enter, look, said

AT = ("host", 1)
OUTER = KvTicket("outer", None, *AT, None)
HELLO = Hello("same", LAYOUT)


@pytest.fixture
def source() -> OfferBook:
    book = OfferBook(lambda: WELCOME, "same", LAYOUT, "engine")
    enter(book)
    for pull, name in enumerate(("old", "new")):
        book.offer(name, "outer")
        book.seal(name, SEALED, now=0)
        look(book, key="outer", pull=pull)
    return book


@pytest.fixture
def sink() -> PullBook:
    """It has the first of two blocks of the older offer."""
    book = PullBook(HELLO)
    book.pull(OUTER, [0, 1], 0, now=0)
    book.handle_message(AT, WELCOME, now=0)
    book.handle_message(AT, News("outer", 0, (5,), ticket_id="old"), now=0)
    (order,) = book.orders
    book.read_done(order.read_id, None, now=0)
    book.outbox.clear()
    return book


@pytest.mark.parametrize("farewell", [Settle, Abandon, Leave])
def test_a_late_word_on_the_older_offer_leaves_the_newer_alone(
    source: OfferBook, farewell: type[Settle | Abandon | Leave]
) -> None:
    source.handle_message(A, farewell("outer", "old"), now=0)
    assert not any(isinstance(answer, Confirmed) for _, answer in said(source))
    assert "new" not in [settled.ticket_id for settled in source.settled]
    assert look(source, key="outer", pull=1) == [
        (A, News("outer", 0, (), SEALED, ticket_id="new", pull=1)),
    ]


@pytest.mark.parametrize("late", [Look("outer", None, 0), Abandon("outer", pull=0)])
@pytest.mark.parametrize("how", ["a newer offer has its name", "expired", "withdrawn"])
@pytest.mark.parametrize("is_taken", [True, False])
def test_a_pull_that_was_told_its_end_has_no_say_in_the_newer_offer(
    is_taken: bool, how: str, late: Look | Abandon
) -> None:
    """Its sink had not heard of an offer yet, or of its end, when it said that."""
    book = OfferBook(lambda: WELCOME, "same", LAYOUT, "engine")
    enter(book)
    enter(book, B)
    book.offer("old", "outer")
    look(book, key="outer")
    if how == "expired":
        book.expire(SILENCE_S)
    if how == "withdrawn":
        book.withdraw("old")
    book.offer("new", "outer")
    book.seal("new", SEALED, now=2)
    assert said(book) == [(A, Gone("outer", how))]
    if is_taken:
        look(book, B, key="outer", now=2)
    book.handle_message(A, late, now=2)
    answers = [(A, Gone("outer", how))] if isinstance(late, Look) else []
    assert said(book) == answers  # and nothing to the sink that has the newer one
    look(book, B, key="outer", now=2)
    book.handle_message(B, Settle("outer", "new"), now=2)
    assert said(book) == [(B, Confirmed("outer", "new"))]


@pytest.mark.parametrize("key", ["t", "outer"])
def test_a_late_abandon_of_a_pull_does_not_end_the_next(key: str) -> None:
    """It came over a connection that its sink has let go of."""
    book = OfferBook(lambda: WELCOME, "same", LAYOUT, "engine")
    enter(book)
    book.offer("t", "outer")
    for pull in (0, 1):
        look(book, key=key, pull=pull)
    book.handle_message(A, Abandon(key, pull=0), now=0)
    assert book.settled == []
    book.handle_message(A, Abandon(key, pull=1), now=0)
    assert book.settled == [Settled("t", Outcome.WITHDRAWN)]


@pytest.mark.parametrize(
    "last", [Settle("outer", "old"), Abandon("outer", "old", 0), Leave("outer", "old")]
)
def test_a_look_behind_the_last_word_does_not_get_the_newer_offer(
    last: Settle | Abandon | Leave,
) -> None:
    book = OfferBook(lambda: WELCOME, "same", LAYOUT, "engine")
    enter(book)
    book.offer("old", "outer")
    book.seal("old", SEALED, now=0)
    look(book, key="outer")
    book.handle_message(A, last, now=0)
    book.offer("new", "outer")
    said(book)
    ((_, answer),) = look(book, key="outer")
    assert isinstance(answer, Gone)
    book.seal("new", SEALED, now=0)
    book.expire(SILENCE_S)  # nobody has it: its lease is the long one
    assert "new" not in [settled.ticket_id for settled in book.settled]


def test_of_the_ended_pulls_the_oldest_are_forgotten_first() -> None:
    ended = EndedPulls(most=2)
    for key in ("a", "b", "a", "c"):
        ended.add(A, key, 3, key)
    ended.add(A, "c", 2, "the one before")
    found = {key: ended.reason(A, Look(key, None, 0, pull=3)) for key in ("a", "b", "c")}
    assert found == {"a": "a", "b": None, "c": "c"}
    assert ended.reason(A, Look("c", None, 0, pull=4)) is None
    assert ended.reason(B, Look("c", None, 0, pull=3)) is None
    assert ended.reason(A, Abandon("c")) is None  # of no pull


def test_blocks_of_two_offers_are_not_mixed(sink: PullBook) -> None:
    sink.handle_message(AT, News("outer", 1, (6,), SEALED, ticket_id="new"), now=0)
    assert [type(one.error) for one in sink.arrived] == [LeaseExpired]


def test_a_ticket_that_becomes_a_newer_offers_name_is_over_for_who_reads_by_it() -> None:
    book = PullBook(HELLO)
    book.pull(KvTicket("t", None, *AT, None), [0, 1], 0, now=0)
    book.handle_message(AT, News("t", 0, ()), now=0)
    book.handle_message(AT, News("t", 0, (6,), SEALED, ticket_id="new"), now=0)
    assert [type(one.error) for one in book.arrived] == [LeaseExpired]


def test_what_is_settled_is_what_was_read(sink: PullBook) -> None:
    sealed = Sealed(2, 42)
    sink.handle_message(AT, News("outer", 1, (6,), sealed, ticket_id="old"), now=0)
    order = sink.orders[-1]
    sink.read_done(order.read_id, None, now=0)
    assert sink.outbox == [(AT, Settle("outer", "old"))]
    sink.handle_message(AT, Confirmed("outer", "new"), now=0)
    assert sink.arrived == []
    sink.handle_message(AT, Confirmed("outer", "old"), now=0)
    assert [one.sealed for one in sink.arrived] == [sealed]


@pytest.mark.parametrize(
    "late",
    [
        Gone("outer", "the lease is over"),
        News("outer", 0, (9,), Sealed(1, 7), ticket_id="old"),
        Stranger("outer"),
    ],
)
def test_a_late_word_on_an_earlier_pull_is_not_of_the_next(
    sink: PullBook, late: Gone | News | Stranger
) -> None:
    sink.abandon(OUTER, now=0)
    sink.pull(OUTER, [3], 0, now=0)
    assert sink.outbox[-1] == (AT, Look("outer", None, 0, pull=1))
    sink.handle_message(AT, News("outer", 0, (6,), ticket_id="new", pull=1), now=0)
    (order,) = sink.orders[1:]
    sink.handle_message(AT, late, now=0)
    sink.handle_message(AT, News("outer", 1, (), Sealed(1, 2), ticket_id="new", pull=1), now=0)
    sink.read_done(order.read_id, None, now=0)
    sink.handle_message(AT, Confirmed("outer", "new"), now=0)  # of the first of them
    assert [type(one.error) for one in sink.arrived] == [TransferCancelled]
    sink.handle_message(AT, Confirmed("outer", "new", pull=1), now=0)
    assert [one.sealed for one in sink.arrived] == [None, Sealed(1, 2)]


def test_a_word_from_another_source_is_not_of_its_own(sink: PullBook) -> None:
    sink.handle_message(("other", 1), Gone("outer", "the lease is over"), now=0)
    sink.handle_message(("other", 1), News("outer", 1, (6,), ticket_id="old"), now=0)
    assert (sink.arrived, len(sink.orders)) == ([], 1)


def test_a_lost_welcome_is_asked_for_again_with_the_next_beat() -> None:
    book = PullBook(HELLO)
    book.pull(OUTER, [0], 0, now=0)
    book.outbox.clear()
    book.handle_message(AT, News("outer", 0, (5,), ticket_id="old"), now=0.2)
    book.tick(0.25)
    assert book.outbox == [(AT, HELLO), (AT, Look("outer", None, 1))]
    book.handle_message(AT, WELCOME, now=0.3)
    assert len(book.orders) == 1


def test_a_welcome_that_comes_twice_is_known() -> None:
    book = PullBook(HELLO)
    book.pull(OUTER, [0], 0, now=0)
    assert not book.has_welcome(AT, WELCOME)
    book.handle_message(AT, WELCOME, now=0)
    assert book.has_welcome(AT, WELCOME)


def test_blocks_are_not_looked_for_in_another_engines_memory() -> None:
    """Which has taken the address, and was met by another pull."""
    book = PullBook(HELLO)
    book.pull(KvTicket("t", "before", *AT, "same"), [0], 0, now=0)
    book.handle_message(AT, WELCOME, now=0)
    book.handle_message(AT, News("t", 0, (5,)), now=0)
    assert book.orders == []
    book.handle_message(AT, Gone("t", "the source was started anew"), now=0)
    ((one),) = book.arrived
    assert one == Arrived("t", error=one.error, stats=TransferStats())
