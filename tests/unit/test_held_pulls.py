"""What a sink has by the time that it may read, and how it lets go of what it has."""

import pytest
from msgspec.structs import replace

from kv_transfer.api import Outcome, Sealed
from kv_transfer.errors import (
    CorruptKv,
    LeaseExpired,
    OfferWithdrawn,
    PeerUnreachable,
    TransferCancelled,
    TransferError,
)
from kv_transfer.layout import KvLayout
from kv_transfer.ledger.offers import ANOTHER, LEASE_OVER
from kv_transfer.ledger.pulls import PullBook
from kv_transfer.regions import BlockRun
from kv_transfer.wire import (
    BEAT_S,
    GIVEN_BACK,
    SILENCE_S,
    Abandon,
    Gone,
    Leave,
    Look,
    News,
    Settle,
)
from tests.unit.test_pulls import AT, SEALED, WELCOME, begin, errors, orders, said, ticket
from tests.unit.test_pulls import book as book

GIVES_BACK = [Abandon("t", pull=0), Look("t", "engine", 1, 0)]


@pytest.mark.parametrize("sealed", [None, SEALED])
def test_what_is_held_is_read_as_soon_as_there_is_room(
    book: PullBook, sealed: Sealed | None
) -> None:
    """Not before, and not a beat later."""
    book.hold(ticket(), now=0)
    book.handle_message(AT, WELCOME, now=0)
    book.handle_message(AT, News("t", 0, (5, 6), sealed), now=0)
    assert orders(book) == []
    book.pull(ticket(), [3, 4], 1, now=0)
    (order,) = orders(book)
    assert list(order.runs) == [BlockRun(6, 4, 1)]


def test_what_was_wrong_is_given_back_and_its_link_is_kept(book: PullBook) -> None:
    wrong, right = begin(book), begin(book, "u")
    book.read_done(wrong, CorruptKv("block 5"), now=0)
    assert said(book) == GIVES_BACK
    book.handle_message(AT, Gone("t", GIVEN_BACK), now=0)
    assert isinstance(errors(book)["t"], CorruptKv)
    assert book.to_disconnect == []
    book.handle_message(AT, News("u", 1, (), SEALED), now=0)
    book.read_done(right, None, now=0)
    assert said(book) == [Settle("u")]


@pytest.mark.parametrize(
    ("reason", "error"),
    [(LEASE_OVER, LeaseExpired), (Outcome.WITHDRAWN, OfferWithdrawn), (ANOTHER, LeaseExpired)],
)
def test_what_was_wrong_may_have_been_somebody_elses_by_then(
    book: PullBook, reason: str, error: type[TransferError]
) -> None:
    """The Gone that said so was lost with a connection; nobody's memory or link is bad."""
    book.read_done(begin(book), CorruptKv("block 5"), now=0)
    book.handle_message(AT, Gone("t", reason), now=0)
    assert type(errors(book)["t"]) is error


def test_a_source_that_was_not_heard_is_asked_again_what_was_wrong(book: PullBook) -> None:
    """Until it is silent. Nothing more is read meanwhile, and news are no answer."""
    wrong = begin(book)
    book.read_done(wrong, CorruptKv("block 5"), now=0)
    said(book)
    book.handle_message(AT, News("t", 1, (6,), SEALED), now=0)
    assert (orders(book), book.arrived) == ([], [])
    book.tick(BEAT_S)
    assert said(book) == [GIVES_BACK[0], Look("t", "engine", 2, 0)]
    book.tick(SILENCE_S)
    assert isinstance(errors(book)["t"], PeerUnreachable)


def test_who_leaves_a_ticket_says_so_and_of_which_pull(book: PullBook) -> None:
    """Or its source would wait for the silence, and end the offer then."""
    book.pull(ticket(), [0, 1], 0, now=0)
    book.handle_message(AT, WELCOME, now=0)
    book.handle_message(AT, News("t", 0, (5,)), now=0)
    (order,) = orders(book)
    said(book)
    book.release_claim(ticket(), now=0)
    assert said(book) == [Leave("t")]
    book.handle_message(AT, News("t", 1, (6,)), now=0)  # no more is read in vain
    assert (orders(book), book.arrived) == ([], [])  # but one read may still write
    book.read_done(order.read_id, None, now=0)
    assert isinstance(errors(book)["t"], TransferCancelled)
    book.hold(ticket(), now=0)
    said(book)
    for _ in range(2):
        book.release_claim(ticket(), now=0)
    assert said(book) == [Leave("t", pull=1)]


def test_what_was_left_may_be_given_up_before_its_last_read_has_ended(book: PullBook) -> None:
    """The source takes no further word of the pull that was left: this one is of none."""
    read_id = begin(book)
    book.release_claim(ticket(), now=0)
    assert said(book) == [Leave("t")]
    book.abandon(ticket(), now=0)
    assert said(book) == [Abandon("t")]
    book.read_done(read_id, None, now=0)
    assert said(book) == []
    assert isinstance(errors(book)["t"], TransferCancelled)


def test_what_was_left_to_others_is_not_taken_from_them_if_it_came_wrong_here(
    book: PullBook,
) -> None:
    """Its last read ends when another sink may have it already."""
    read = begin(book)
    book.release_claim(ticket(), now=0)
    assert said(book) == [Leave("t")]
    book.read_done(read, CorruptKv("block 5"), now=0)
    assert said(book) == []
    assert isinstance(errors(book)["t"], TransferCancelled)


def test_a_pull_has_one_list_of_pieces_under_way(book: PullBook) -> None:
    """A connector takes no more at a time; what was announced meanwhile is read then."""
    book.pull(ticket(), range(4), 0, now=0)
    of_two = KvLayout("bytes", 2, 1, (8,))
    book.handle_message(AT, replace(WELCOME, layout=of_two), now=0)
    book.handle_message(AT, News("t", 0, (5,)), now=0)
    (first,) = orders(book)
    book.handle_message(AT, News("t", 1, (6,), SEALED), now=0)
    assert orders(book) == []
    book.read_done(first.read_id, None, now=0)
    (second,) = orders(book)
    assert list(second.runs) == [BlockRun(12, 2, 2)]
