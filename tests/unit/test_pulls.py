"""The sink's books: what is asked, read and believed. No sockets, no clock."""

import pytest
from msgspec.structs import replace

from kv_transfer.api import Arrived, Outcome, Sealed, TransferStats
from kv_transfer.errors import (
    LeaseExpired,
    PeerUnreachable,
    TransferCancelled,
    TransferError,
)
from kv_transfer.layout import KvLayout
from kv_transfer.ledger.pulls import PullBook
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.regions import BlockRun
from kv_transfer.ticket import KvTicket
from kv_transfer.wire import (
    BEAT_S,
    SILENCE_S,
    Abandon,
    Confirmed,
    FromSink,
    Gone,
    Hello,
    Look,
    News,
    Settle,
    Welcome,
)

LAYOUT = KvLayout("bytes", 1, 1, (4,))
HELLO = Hello("same", LAYOUT)
WELCOME = Welcome("engine", "same", LAYOUT, (), (b"card",), "machine")
SEALED = Sealed(2, 42)
AT = ("host", 1)
BROKEN = PeerUnreachable("broken")


def ticket(name: str = "t", engine_id: str | None = "engine", port: int = 1) -> KvTicket:
    return KvTicket(name, engine_id, "host", port, "same")


@pytest.fixture
def book() -> PullBook:
    return PullBook(HELLO)


def said(book: PullBook) -> list[FromSink]:
    out, book.outbox = book.outbox, []
    return [message for _, message in out]


def orders(book: PullBook) -> list[ReadOrder]:
    out, book.orders = book.orders, []
    return out


def begin(book: PullBook, name: str = "t", blocks: tuple[int, ...] = (5,)) -> int:
    """Pull, and be told of the blocks; the id of the read that follows."""
    book.pull(ticket(name), range(len(blocks)), 0, now=0)
    sent = said(book)
    if Hello in map(type, sent):
        book.handle_message(AT, replace(WELCOME), now=0)  # every answer is a message of its own
    (number,) = (one.pull for one in sent if isinstance(one, Look))
    book.handle_message(AT, News(name, 0, blocks, pull=number), now=0)
    (order,) = orders(book)
    return order.read_id


def errors(book: PullBook) -> dict[str, TransferError | None]:
    ended, book.arrived = book.arrived, []
    found = {one.ticket_id: one.error for one in ended}
    assert len(found) == len(ended)  # nobody ends twice
    return found


class TestABrokenLink:
    def test_ends_all_pulls_over_it_each_once(self, book: PullBook) -> None:
        reads = [begin(book, name) for name in ("t", "u")]
        book.hold(ticket("held"), now=0)
        book.read_done(reads[0], BROKEN, now=1)
        assert errors(book) == {"t": BROKEN}  # the other may still be written to
        assert book.to_disconnect == [AT]
        book.read_done(reads[1], TransferCancelled(), now=1)
        assert errors(book) == {"u": BROKEN}
        book.pull(ticket("held"), [0], 0, now=1)
        assert errors(book) == {"held": BROKEN}
        assert book.num_open == 0

    def test_of_one_pull_is_the_same_for_all_its_reads(self, book: PullBook) -> None:
        book.pull(ticket(), [0, 1], 0, now=0)
        book.handle_message(AT, WELCOME, now=0)
        for start in (0, 1):
            book.handle_message(AT, News("t", start, (5,)), now=0)
        one, two = (order.read_id for order in orders(book))
        book.read_done(one, BROKEN, now=1)
        assert errors(book) == {}
        book.read_done(two, PeerUnreachable("too"), now=1)
        assert errors(book) == {"t": BROKEN}
        assert book.to_disconnect == [AT]

    def test_is_made_anew_by_the_next_pull(self, book: PullBook) -> None:
        book.read_done(begin(book), BROKEN, now=0)
        book.pull(ticket("u"), [0], 0, now=0)
        assert said(book) == [HELLO, Look("u", "engine", 0, pull=1)]

    def test_leaves_a_newer_one_alone(self, book: PullBook) -> None:
        old, also_old = begin(book), begin(book, "u")
        book.read_done(old, BROKEN, now=0)
        new = begin(book, "v")  # with a hello and a welcome of its own
        book.read_done(also_old, BROKEN, now=0)
        assert set(errors(book)) == {"t", "u"}
        assert book.to_disconnect == [AT]
        book.read_done(new, None, now=0)
        assert book.num_open == 1

    def test_is_known_from_a_pull_that_was_given_up_too(self, book: PullBook) -> None:
        read = begin(book)
        book.abandon(ticket(), now=0)
        book.read_done(read, BROKEN, now=0)
        assert isinstance(errors(book)["t"], TransferCancelled)
        assert book.to_disconnect == [AT]

    def test_is_not_what_a_read_that_was_stopped_means(self, book: PullBook) -> None:
        read = begin(book)
        book.hold(ticket("held"), now=0)
        book.read_done(read, TransferCancelled(), now=0)
        assert set(errors(book)) == {"t"}
        assert book.to_disconnect == []

    def test_ends_nothing_at_another_source(self, book: PullBook) -> None:
        read = begin(book)
        book.hold(ticket("elsewhere", port=2), now=0)
        book.read_done(read, BROKEN, now=0)
        book.pull(ticket("elsewhere", port=2), [0], 0, now=0)
        assert set(errors(book)) == {"t"}


def test_bytes_and_seconds_of_a_pull_are_counted(book: PullBook) -> None:
    book.pull(ticket(), [0, 1, 2], 1, now=0)
    book.handle_message(AT, WELCOME, now=0)
    book.handle_message(AT, News("t", 0, (5, 6)), now=10)
    (first,) = orders(book)
    assert list(first.runs) == [BlockRun(6, 1, 1)]
    book.read_done(first.read_id, None, now=12)
    book.handle_message(AT, News("t", 2, (9,), SEALED), now=20)
    (second,) = orders(book)
    assert list(second.runs) == [BlockRun(9, 2, 1)]
    assert said(book)[2:] == []
    book.read_done(second.read_id, None, now=21)
    assert said(book) == [Settle("t")]
    book.handle_message(AT, Confirmed("t"), now=22)
    assert book.arrived == [Arrived("t", SEALED, stats=TransferStats(8, 3))]


def test_seconds_of_reads_at_the_same_time_count_once(book: PullBook) -> None:
    book.pull(ticket(), [0, 1], 0, now=0)
    book.handle_message(AT, News("t", 0, (5,)), now=0)
    assert orders(book) == []  # where its memory is has not been told
    book.handle_message(AT, WELCOME, now=10)
    book.handle_message(AT, News("t", 1, (6,), SEALED), now=11)
    book.handle_message(AT, News("t", 2, ()), now=11)
    one, two = (order.read_id for order in orders(book))
    book.read_done(one, None, now=12)
    book.read_done(two, None, now=14)
    book.handle_message(AT, Confirmed("t"), now=14)
    assert book.arrived == [Arrived("t", SEALED, stats=TransferStats(8, 4))]


def test_holding_what_is_pulled_changes_nothing(book: PullBook) -> None:
    read = begin(book)
    book.hold(ticket(), now=0)
    assert said(book) == []
    book.handle_message(AT, News("t", 1, (), SEALED), now=0)
    book.read_done(read, None, now=0)
    assert said(book) == [Settle("t")]


def test_a_settlement_has_time_for_its_answer(book: PullBook) -> None:
    read = begin(book)
    book.handle_message(AT, News("t", 1, (), SEALED), now=0)
    book.read_done(read, None, now=1)
    book.tick(SILENCE_S + 0.9)
    assert book.num_open == 1
    book.tick(SILENCE_S + 1.1)
    assert isinstance(errors(book)["t"], PeerUnreachable)


def test_news_that_overlap_or_leave_a_gap(book: PullBook) -> None:
    begin(book, blocks=(5, 6))
    book.handle_message(AT, News("t", 1, (6,)), now=0)
    assert orders(book) == []
    book.handle_message(AT, News("t", 3, (8,)), now=0)  # what is before it was lost
    assert orders(book) == []
    book.tick(BEAT_S)
    assert said(book) == [Look("t", "engine", 2)]


def test_a_confirmation_nobody_asked_for_ends_nothing(book: PullBook) -> None:
    begin(book)
    book.handle_message(AT, Confirmed("t"), now=0)
    book.handle_message(AT, Confirmed("unknown"), now=0)
    assert book.arrived == []
    assert book.num_open == 1


def test_hello_is_said_once_and_again_to_a_successor(book: PullBook) -> None:
    book.hold(ticket("a"), now=9)
    book.hold(ticket("b", engine_id="successor"), now=9)  # nobody has answered yet
    assert [type(one) for one in said(book)] == [Hello, Look, Look]
    book.handle_message(AT, WELCOME, now=9)
    book.hold(ticket("c"), now=9)
    book.hold(ticket("d", engine_id=None), now=9)
    assert Hello not in map(type, said(book))
    book.hold(ticket("e", engine_id="successor"), now=9)
    assert Hello in map(type, said(book))


def test_a_look_is_a_heartbeat_until_it_is_settled(book: PullBook) -> None:
    book.hold(ticket(), now=0)
    assert Look("t", "engine", 0) in said(book)
    book.handle_message(AT, WELCOME, now=0)
    book.tick(BEAT_S - 0.01)
    assert said(book) == []
    book.tick(BEAT_S)
    assert said(book) == [Look("t", "engine", 0)]
    book.pull(ticket(), [], 0, now=BEAT_S)
    book.handle_message(AT, News("t", 0, (), SEALED), now=BEAT_S)
    assert said(book) == [Settle("t")]
    book.tick(2 * BEAT_S)
    assert said(book) == []


def test_silence_is_counted_from_the_last_word(book: PullBook) -> None:
    book.pull(ticket(), [0], 0, now=0)
    book.handle_message(AT, WELCOME, now=0)
    book.handle_message(AT, News("t", 0, ()), now=1)
    book.tick(1 + SILENCE_S - 0.01)
    assert book.to_disconnect == []
    book.tick(1 + SILENCE_S)
    assert book.to_disconnect == [AT]
    book.tick(9)
    assert book.to_disconnect == [AT]  # once


def test_a_ticket_held_by_nobody_any_more_is_forgotten(book: PullBook) -> None:
    book.hold(ticket(), now=0)
    said(book)
    book.abandon(ticket(), now=0)
    book.abandon(ticket(), now=0)
    assert said(book) == [Abandon("t", pull=0), Abandon("t")]
    assert (book.num_open, book.arrived) == (0, [])


def test_a_held_ticket_keeps_what_became_of_it(book: PullBook) -> None:
    book.hold(ticket(), now=0)
    book.handle_message(AT, Gone("t", "over"), now=0)
    book.tick(SILENCE_S)
    assert (book.to_disconnect, book.arrived) == ([], [])
    book.pull(ticket(), [0], 0, now=0)
    assert isinstance(errors(book)["t"], LeaseExpired)


def test_an_offer_that_was_withdrawn_is_told_from_one_that_expired(book: PullBook) -> None:
    for name, reason in (("t", Outcome.WITHDRAWN), ("u", Outcome.EXPIRED)):
        begin(book, name)
        book.handle_message(AT, Gone(name, reason), now=0)
    for read in (1, 2):
        book.read_done(read, None, now=0)
    kinds = {arrived.ticket_id: arrived.error.kind for arrived in book.arrived if arrived.error}
    assert kinds == {"t": "withdrawn", "u": "expired"}


def test_giving_everything_up_says_so_once(book: PullBook) -> None:
    read = begin(book)
    book.hold(ticket("held"), now=0)
    said(book)
    book.abandon_all(now=0)
    book.abandon_all(now=0)
    assert said(book) == [Abandon("t", pull=0), Abandon("held", pull=0)]
    book.read_done(read, None, now=0)
    assert isinstance(errors(book)["t"], TransferCancelled)
    assert book.num_open == 0
