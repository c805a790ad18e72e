"""Where memory is not shared after all, a source learns that it has to help."""

import pytest
from msgspec.structs import replace

from kv_transfer.ledger.offers import OfferBook
from kv_transfer.ledger.pulls import PullBook
from kv_transfer.wire import Drive, FromSink, Settle
from tests.unit import test_offers as offers
from tests.unit.test_offers import HERE, SEALED, A, enter, look
from tests.unit.test_pulls import AT, HELLO, LAYOUT, WELCOME, said, ticket


@pytest.mark.parametrize(("machine", "told"), [("machine", [Drive()]), ("another", [])])
def test_a_source_is_told_of_a_read_that_stands_still(
    machine: str, told: list[FromSink]
) -> None:
    """But elsewhere, where it polls anyway."""
    book = PullBook(HELLO)
    book.pull(ticket(), [0], 0, now=0)
    book.heard(AT, replace(WELCOME, machine=machine), now=0)
    said(book)
    book.stalled(AT, now=0)
    book.stalled(("nobody", 1), now=0)
    assert said(book) == told


def test_one_that_stands_still_shares_no_memory_with_us() -> None:
    """Two containers of one machine, or UCX_TLS=tcp: each read waited for our next turn."""
    book = OfferBook(lambda: offers.WELCOME, "same", LAYOUT, "engine")
    enter(book)
    book.offer("t", None)
    look(book)
    book.heard(A, Drive(), now=0)  # its connection is being made: that proves nothing
    book.seal("t", SEALED, now=0)
    book.heard(A, Settle("t"), now=0)
    book.outbox.clear()
    for key, stands, needed in (("u", False, False), ("v", True, True), ("w", False, True)):
        book.offer(key, None)
        look(book, key=key)
        if stands:
            book.heard(A, Drive(), now=0)
        assert book.needs_driving(HERE) is needed
        book.withdraw(key)
        book.outbox.clear()
