"""The source's books: who is told what, and when an offer ends. No sockets, no clock."""

import pytest

from kv_transfer.api import Outcome, Sealed, Settled
from kv_transfer.layout import KvLayout
from kv_transfer.ledger.offers import OfferBook
from kv_transfer.movers.nixl import AGAIN_S
from kv_transfer.ticket import LEASE_S
from kv_transfer.wire import (
    DRIVEN_S,
    SILENCE_S,
    Abandon,
    Confirmed,
    Drive,
    FromSource,
    Gone,
    Hello,
    Look,
    News,
    Refused,
    Settle,
    Stranger,
    Welcome,
)

LAYOUT = KvLayout("bytes", 1, 1, (4,))
WELCOME = Welcome("engine", "same", LAYOUT, (), (b"card",), "machine")
SEALED = Sealed(2, 42)
A, B = b"sink a", b"sink b"


@pytest.fixture
def book() -> OfferBook:
    return OfferBook(lambda: WELCOME, "same", LAYOUT, "engine")


def said(book: OfferBook) -> list[tuple[bytes, FromSource]]:
    out, book.outbox = book.outbox, []
    return out


def enter(book: OfferBook, peer: bytes = A) -> None:
    book.handle_message(peer, Hello("same", LAYOUT), now=0)
    assert said(book) == [(peer, WELCOME)]


def look(
    book: OfferBook,
    peer: bytes = A,
    key: str = "t",
    known: int = 0,
    now: float = 0,
    pull: int = 0,
) -> list[tuple[bytes, FromSource]]:
    book.handle_message(peer, Look(key, "engine", known, pull), now=now)
    return said(book)


def deliver(book: OfferBook, key: str, peer: bytes = A) -> None:
    book.offer(key, None)
    book.seal(key, SEALED, now=0)
    look(book, peer, key)
    book.handle_message(peer, Settle(key), now=0)
    assert said(book) == [(peer, Confirmed(key))]


class TestNeedsDriving:
    def test_an_offer_alone_needs_nothing(self, book: OfferBook) -> None:
        enter(book)
        book.offer("t", None)
        look(book)
        assert not book.needs_driving(0)

    def test_a_sink_says_when_and_again_while_it_reads(self, book: OfferBook) -> None:
        """Polling costs the engine: it ends soon after what it was for."""
        enter(book)
        for now in (0, 10):
            assert not book.needs_driving(now)
            book.handle_message(A, Drive(), now=now)
            assert book.needs_driving(now + AGAIN_S)
            assert not book.needs_driving(now + DRIVEN_S)
        assert said(book) == []

    def test_strangers_keep_nobody_awake(self, book: OfferBook) -> None:
        book.handle_message(B, Drive(), now=0)
        assert not book.needs_driving(0)


def test_a_sink_is_told_each_block_once_and_the_end(book: OfferBook) -> None:
    enter(book)
    book.offer("t", None)
    book.extend("t", [5, 6])
    assert look(book, known=1) == [(A, News("t", 1, (6,)))]
    book.flush()
    assert said(book) == []
    book.extend("t", [7])
    book.seal("t", SEALED, now=0)
    book.flush()
    assert said(book) == [(A, News("t", 2, (7,), SEALED))]
    book.flush()
    assert said(book) == []


def test_the_end_alone_is_news(book: OfferBook) -> None:
    enter(book)
    book.offer("t", None)
    look(book)
    book.seal("t", SEALED, now=0)
    book.flush()
    assert said(book) == [(A, News("t", 0, (), SEALED))]


@pytest.mark.parametrize("looked", [True, False])
def test_who_gives_up_is_not_told_so(book: OfferBook, looked: bool) -> None:
    enter(book)
    book.offer("t", None)
    if looked:
        look(book)
    book.handle_message(A, Abandon("t"), now=0)
    assert said(book) == []
    assert book.settled == [Settled("t", Outcome.WITHDRAWN)]


def test_all_can_be_withdrawn(book: OfferBook) -> None:
    for key in ("t", "u"):
        book.offer(key, None)
    book.withdraw_all()
    assert book.settled == [Settled(key, Outcome.WITHDRAWN) for key in ("t", "u")]
    assert book.num_open == 0


def test_a_sink_that_knows_more_than_there_is_is_told_where_we_are(book: OfferBook) -> None:
    enter(book)
    book.offer("t", None)
    assert look(book, known=9) == [(A, News("t", 0, ()))]


def test_who_looks_last_has_the_ticket(book: OfferBook) -> None:
    enter(book)
    enter(book, B)
    book.offer("t", None)
    look(book)
    book.handle_message(B, Look("t", "engine", 0), now=0)
    taken = "another sink has asked for it"
    assert said(book) == [(A, Gone("t", taken)), (B, News("t", 0, ()))]
    assert look(book) == [(A, Gone("t", taken))]  # and does not get it back
    book.handle_message(A, Abandon("t"), now=0)  # too late: it is no longer his
    book.extend("t", [1])
    book.flush()
    assert said(book) == [(B, News("t", 0, (1,)))]
    book.withdraw("t")
    assert said(book) == [(B, Gone("t", Outcome.WITHDRAWN))]
    assert book.settled == [Settled("t", Outcome.WITHDRAWN)]


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        (Hello("other", LAYOUT), "fingerprint is same there and other here"),
        (Hello("same", KvLayout("f16", 1, 1, (4,))), "dtype is bytes there and f16 here"),
    ],
)
def test_who_does_not_fit_gets_nothing_any_more(
    book: OfferBook, hello: Hello, why: str
) -> None:
    """The reason is told as the sink sees it, since it is read there."""
    enter(book)
    book.handle_message(A, hello, now=0)
    assert said(book) == [(A, Refused(why))]
    book.offer("t", None)
    assert look(book) == [(A, Stranger("t"))]


@pytest.mark.parametrize(("engine_id", "known"), [("engine", True), (None, True), ("x", False)])
def test_a_ticket_of_our_predecessor_is_not_ours(
    book: OfferBook, engine_id: str | None, known: bool
) -> None:
    enter(book)
    book.offer("t", None)
    book.handle_message(A, Look("t", engine_id, 0), now=0)
    ((_, answer),) = said(book)
    assert isinstance(answer, News) is known


def test_a_lease_is_long_until_somebody_comes_and_short_after(book: OfferBook) -> None:
    enter(book)
    for key in ("none", "some"):
        book.offer(key, None)
    look(book, key="some", now=1)
    for key in ("none", "some"):
        book.seal(key, SEALED, now=1)
    book.expire(1 + SILENCE_S - 0.01)
    assert book.settled == []
    book.expire(1 + SILENCE_S)
    assert book.settled == [Settled("some", Outcome.EXPIRED)]
    book.expire(1 + LEASE_S - 0.01)
    assert book.num_open == 1
    book.expire(1 + LEASE_S)
    assert book.settled[1:] == [Settled("none", Outcome.EXPIRED)]


def test_the_newest_offer_of_a_request_is_meant_and_then_none(book: OfferBook) -> None:
    enter(book)
    for key in ("old", "new"):
        book.offer(key, "outer")
    book.extend("new", [3])
    assert look(book, key="outer") == [(A, News("outer", 0, (3,), ticket_id="new"))]
    book.withdraw("old")  # leaves the newer one's name alone
    assert look(book, key="outer", known=1) == [(A, News("outer", 1, (), ticket_id="new"))]
    book.withdraw("new")
    assert said(book) == [(A, Gone("outer", Outcome.WITHDRAWN))]
    book.offer("new", None)  # has no other name
    assert look(book, key="outer", pull=1) == [(A, Gone("outer", "the lease is over", 1))]


def test_a_name_that_changes_hands_ends_what_was_read_by_it(book: OfferBook) -> None:
    """Or the first blocks would be of one offer, and those after them of another."""
    enter(book)
    book.offer("old", "outer")
    book.extend("old", [1, 2])
    assert look(book, key="outer") == [(A, News("outer", 0, (1, 2), ticket_id="old"))]
    book.offer("new", "outer")
    assert said(book) == [(A, Gone("outer", "a newer offer has its name"))]
    book.extend("old", [3])
    book.flush()
    assert said(book) == []
    book.expire(SILENCE_S)
    assert book.settled == [Settled("old", Outcome.EXPIRED)]
    assert said(book) == []


def test_a_settlement_counts_once(book: OfferBook) -> None:
    enter(book)
    deliver(book, "t")
    book.handle_message(A, Settle("t"), now=0)
    assert said(book) == [(A, Gone("t", "it is settled"))]
    assert book.settled == [Settled("t", Outcome.DELIVERED)]


def test_a_sink_that_asks_is_not_forgotten_for_those_that_do_not(book: OfferBook) -> None:
    """Whoever has not asked for longest goes first, and need not say Hello again until then."""
    book.known_sinks.most = 2
    enter(book, A)
    for stranger in (b"x", b"y", b"z"):
        enter(book, stranger)
        book.offer(stranger.decode(), None)
        assert look(book, A, stranger.decode()) == [(A, News(stranger.decode(), 0, (), None))]


def test_sinks_that_never_say_farewell_are_forgotten_and_may_come_back(book: OfferBook) -> None:
    book.known_sinks.most = 2
    for peer in (A, B, b"sink c"):
        enter(book, peer)
    book.offer("t", None)
    assert look(book, A) == [(A, Stranger("t"))]
    enter(book, A)
    assert look(book, A) == [(A, News("t", 0, (), None))]


@pytest.mark.parametrize(
    ("ended_by", "reason"),
    [
        (Abandon("t"), Outcome.WITHDRAWN),  # its driver gave it up: nothing is wrong
        (None, "the lease is over"),
    ],
)
def test_who_comes_too_late_is_told_whether_it_was_withdrawn(
    book: OfferBook, ended_by: Abandon | None, reason: str
) -> None:
    enter(book)
    book.offer("t", None)
    book.seal("t", SEALED, now=0)
    if ended_by is not None:
        book.handle_message(A, ended_by, now=0)
    book.expire(LEASE_S)
    assert look(book, now=LEASE_S) == [(A, Gone("t", reason))]


def test_last_words_on_an_offer_that_we_never_had_harm_nobody(book: OfferBook) -> None:
    """A sink may have begun with our predecessor."""
    enter(book)
    book.handle_message(A, Abandon("t", pull=0), now=0)
    assert said(book) == []
    book.handle_message(A, Settle("u"), now=0)
    assert said(book) == [(A, Gone("u", "the lease is over"))]
