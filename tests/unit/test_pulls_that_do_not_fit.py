"""A source, or what it offers, that does not fit the sink's blocks."""

import pytest

from kv_transfer.errors import LayoutMismatch
from kv_transfer.layout import KvLayout
from kv_transfer.ledger.pulls import PullBook
from kv_transfer.wire import Abandon, News, Refused, Welcome
from tests.unit.test_pulls import AT, LAYOUT, SEALED, WELCOME, errors, said, ticket
from tests.unit.test_pulls import book as book


@pytest.mark.parametrize(
    "answer",
    [
        Refused("no"),
        Welcome("engine", "other", LAYOUT, (), (b"",), "machine"),
        Welcome("engine", "same", KvLayout("f16", 1, 1, (4,)), (), (b"",), "machine"),
    ],
)
def test_a_source_that_does_not_fit(book: PullBook, answer: Refused | Welcome) -> None:
    book.pull(ticket(), [0], 0, now=0)
    book.handle_message(AT, answer, now=0)
    assert isinstance(errors(book)["t"], LayoutMismatch)
    assert book.to_disconnect == [AT]


@pytest.mark.parametrize("news", [News("t", 0, (1, 2)), News("t", 0, (), SEALED)])
def test_another_number_of_blocks_is_given_back(book: PullBook, news: News) -> None:
    book.pull(ticket(), [0], 0, now=0)
    book.handle_message(AT, WELCOME, now=0)
    said(book)
    book.handle_message(AT, news, now=0)
    assert said(book) == [Abandon("t", pull=0)]
    assert isinstance(errors(book)["t"], LayoutMismatch)
