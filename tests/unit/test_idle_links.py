"""Nodes come back on other ports: links to the old ones are let go of."""

import pytest

from kv_transfer.ledger.known_sources import IDLE_S
from kv_transfer.ledger.pulls import PullBook
from kv_transfer.wire import Confirmed, Look, News
from tests.unit.test_pulls import AT, HELLO, SEALED, begin, said, ticket


@pytest.fixture
def book() -> PullBook:
    return PullBook(HELLO)


def test_it_is_made_anew_by_the_next_pull(book: PullBook) -> None:
    book.read_done(begin(book), None, now=0)
    book.handle_message(AT, News("t", 1, (), SEALED), now=0)
    book.handle_message(AT, Confirmed("t"), now=0)
    book.tick(now=IDLE_S - 1)
    assert book.to_disconnect == []
    book.tick(now=IDLE_S)
    book.tick(now=IDLE_S)
    assert book.to_disconnect == [AT]
    said(book)
    book.pull(ticket("u"), [0], 0, now=IDLE_S)
    assert said(book) == [HELLO, Look("u", "engine", 0, pull=1)]


def test_so_are_those_that_were_only_told_no(book: PullBook) -> None:
    book.abandon(ticket(), now=0)
    book.tick(now=IDLE_S)
    assert book.to_disconnect == [AT]


def test_what_is_pulled_over_is_not_idle(book: PullBook) -> None:
    read_id = begin(book, blocks=tuple(range(6000)))  # which may take as long
    book.abandon(ticket(), now=0)
    book.tick(now=IDLE_S)
    assert book.to_disconnect == []
    book.read_done(read_id, None, now=IDLE_S)
    book.tick(now=IDLE_S)
    assert book.to_disconnect == [AT]
