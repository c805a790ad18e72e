"""Checksums in both books: whose they are, and when a block may be told of."""

import pytest
from msgspec.structs import replace

from kv_transfer.api import Outcome, Sealed
from kv_transfer.checking import CheckLevel
from kv_transfer.errors import CorruptKv
from kv_transfer.layout import KvLayout
from kv_transfer.ledger.offers import LEASE_OVER, OfferBook
from kv_transfer.ledger.pulls import PullBook
from kv_transfer.regions import BlockRun
from kv_transfer.ticket import KvTicket
from kv_transfer.wire import (
    GIVEN_BACK,
    SILENCE_S,
    Abandon,
    FromSource,
    Gone,
    Hello,
    Look,
    News,
    Welcome,
)

LAYOUT = KvLayout("bytes", 1, 1, (4,))
HELLO = Hello("same", LAYOUT)
WELCOME = Welcome("engine", "same", LAYOUT, (), (b"card",), "machine")
PAIRS = KvLayout("bytes", 2, 1, (8,))
SEALED, AT, A, B = Sealed(2, 42), ("host", 1), b"a", b"b"
TICKET = KvTicket("t", "engine", "host", 1, "same")
OFF, SAMPLED, FULL = CheckLevel.OFF, CheckLevel.SAMPLED, CheckLevel.FULL


def offered(level: CheckLevel, *blocks: int) -> OfferBook:
    book = OfferBook(lambda: WELCOME, "same", LAYOUT, "engine", level)
    book.offer("t", None)
    book.extend("t", blocks)
    book.seal("t", SEALED, now=0)
    return book


def look(book: OfferBook, peer: bytes, level: CheckLevel = OFF, known: int = 0) -> FromSource:
    book.handle_message(peer, replace(HELLO, level=level), now=0)
    book.handle_message(peer, Look("t", "engine", known), now=0)
    told, book.outbox = book.outbox[-1][1], []
    return told


def make_sums(book: OfferBook, most: int = 100) -> None:
    for order in book.missing_checksums(most):
        book.add_checksums(order, [10 * block + order.level for block in order.blocks])


def test_a_block_is_told_of_once_it_has_its_checksum() -> None:
    book = offered(FULL, 5, 6)
    assert look(book, A) == News("t", 0, (), None, (), FULL)
    make_sums(book, most=1)
    book.flush()
    assert book.outbox.pop() == (A, News("t", 0, (5,), None, (52,), FULL))
    make_sums(book)
    book.flush()
    assert book.outbox.pop() == (A, News("t", 1, (6,), SEALED, (62,), FULL))
    assert book.missing_checksums(1) == []


def test_without_checksums_nothing_waits() -> None:
    assert look(offered(OFF, 5), A) == News("t", 0, (5,), SEALED)


@pytest.mark.parametrize("ours", [OFF, SAMPLED])
def test_a_sink_that_wants_to_look_closer_gets_other_checksums(ours: CheckLevel) -> None:
    book = offered(ours, 5)
    make_sums(book)
    assert look(book, A) == News("t", 0, (5,), SEALED, (50 + ours,) if ours else (), ours)
    assert look(book, B, FULL) == News("t", 0, (), None, (), FULL)
    make_sums(book)
    assert look(book, B, FULL, known=0) == News("t", 0, (5,), SEALED, (52,), FULL)


def test_a_sink_of_smaller_blocks_gets_a_checksum_for_each_of_its_own() -> None:
    """It may read the first half of a block, and not the other."""
    book = OfferBook(lambda: WELCOME, "same", PAIRS, "engine", FULL)
    book.offer("t", None)
    book.extend("t", [5, 6])
    book.seal("t", SEALED, now=0)
    book.handle_message(A, replace(HELLO, layout=PAIRS), now=0)
    book.handle_message(A, Look("t", "engine", 0), now=0)
    make_sums(book)
    assert look(book, A) == News("t", 0, (), None, (), FULL, slots=2)
    (order,) = book.missing_checksums(100)
    assert order.seen.our_slots == 2
    book.add_checksums(order, [50, 51, 60, 61])
    told = look(book, A, known=1)
    assert told == News("t", 1, (6,), SEALED, (60, 61), FULL, slots=2)
    sink = PullBook(HELLO)
    sink.pull(TICKET, [7, 8, 9], 1, now=0)  # the first half is known, the last not there
    sink.handle_message(AT, replace(WELCOME, layout=PAIRS), now=0)
    sink.handle_message(
        AT, News("t", 0, (5, 6), SEALED, (50, 51, 60, 61), FULL, slots=2), now=0
    )
    (read,) = sink.orders
    assert (list(read.runs), read.checks) == (
        [BlockRun(11, 8, 2)],
        [(FULL, 51), (FULL, 60)],
    )


def test_a_checksum_that_comes_too_late_is_not_told() -> None:
    """Others were asked for meanwhile."""
    book = offered(SAMPLED, 5)
    (order,) = book.missing_checksums(1)
    look(book, A, FULL)
    book.add_checksums(order, [51])
    assert look(book, A, FULL) == News("t", 0, (), None, (), FULL)
    book.withdraw("t")
    book.add_checksums(order, [51])  # nor for an offer that is over
    assert book.missing_checksums(1) == []


def test_checksums_that_come_twice_count_once() -> None:
    book = offered(FULL, 5, 6)
    for order in [*book.missing_checksums(1), *book.missing_checksums(1)]:
        book.add_checksums(order, [52])
    assert [(order.start, order.blocks) for order in book.missing_checksums(9)] == [(1, [6])]


@pytest.mark.parametrize(
    ("ended_at", "reason"),
    [(None, GIVEN_BACK), (SILENCE_S, Outcome.EXPIRED)],
)
def test_a_sink_that_found_other_bytes_is_told_whether_they_were_still_lent(
    ended_at: float | None, reason: str
) -> None:
    """The Gone of a lease that is over may be lost, and so may each answer."""
    book = offered(OFF, 5)
    look(book, A)
    if ended_at is not None:
        book.expire(ended_at)
    for _ in range(2):
        book.outbox.clear()
        book.handle_message(A, Abandon("t", pull=0), now=0)
        assert look(book, A) == Gone("t", reason)


def test_a_sink_that_nobody_knows_any_more_had_nothing_lent() -> None:
    book = offered(OFF, 5)
    book.withdraw("t")
    book.handle_message(A, Abandon("t", pull=0), now=0)
    assert look(book, A) == Gone("t", LEASE_OVER)


def test_no_offer_waits_for_the_checksums_of_a_long_one() -> None:
    book = offered(FULL, *range(1000))
    assert [len(order.blocks) for order in book.missing_checksums(10)] == [10]
    book.offer("short", None)
    book.extend("short", (7, 8))
    assert [(order.ticket_id, len(order.blocks)) for order in book.missing_checksums(10)] == [
        ("t", 5),
        ("short", 2),
    ]


@pytest.mark.parametrize(
    "told",
    [
        News("t", 0, (5,), SEALED),
        News("t", 0, (5,), SEALED, (7,), SAMPLED),
        News("t", 0, (5,), SEALED, (), FULL),
    ],
)
def test_kv_without_the_checksums_that_are_wanted_is_not_read(told: News) -> None:
    """Its source does not know of them, or makes worse ones."""
    book = PullBook(replace(HELLO, level=FULL))
    book.pull(TICKET, [0], 0, now=0)
    book.handle_message(AT, WELCOME, now=0)
    book.handle_message(AT, told, now=0)
    (arrived,) = book.arrived
    assert isinstance(arrived.error, CorruptKv)
    assert not book.orders
    assert book.outbox[-1] == (AT, Abandon("t", pull=0))


def test_kv_with_the_checksums_that_are_wanted_is_read_whatever_came_without_blocks() -> None:
    book = PullBook(replace(HELLO, level=FULL))
    book.pull(TICKET, [0], 0, now=0)
    book.handle_message(AT, WELCOME, now=0)
    book.handle_message(AT, News("t", 0, ()), now=0)
    book.handle_message(AT, News("t", 0, (5,), SEALED, (7,), FULL), now=0)
    (order,) = book.orders
    assert order.checks == [(FULL, 7)]


def test_checksums_of_some_blocks_are_not_taken_for_those_of_others() -> None:
    book = PullBook(HELLO)
    book.pull(TICKET, [0, 1], 0, now=0)
    book.handle_message(AT, WELCOME, now=0)
    book.handle_message(AT, News("t", 0, (5, 6), SEALED, (60,), FULL), now=0)
    (arrived,) = book.arrived
    assert isinstance(arrived.error, CorruptKv)
    assert not book.orders


def test_each_block_is_compared_with_its_own_checksum() -> None:
    book = PullBook(HELLO)
    book.pull(TICKET, [4, 3, 2], 1, now=0)
    book.handle_message(AT, WELCOME, now=0)
    book.handle_message(AT, News("t", 0, (5, 6), None, (50, 60), SAMPLED), now=0)
    book.handle_message(AT, News("t", 1, (6, 7), None, (61, 70), FULL), now=0)
    first, second = book.orders
    assert (list(first.runs), first.checks) == ([BlockRun(6, 3, 1)], [(SAMPLED, 60)])
    assert (list(second.runs), second.checks) == ([BlockRun(7, 2, 1)], [(FULL, 70)])
