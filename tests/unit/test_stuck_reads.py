"""A source may answer while its memory does not: reads have a time. No sockets, no clock."""

import pytest
from msgspec.structs import replace

from kv_transfer.errors import LeaseExpired, PeerUnreachable, TransferCancelled
from kv_transfer.layout import KvLayout
from kv_transfer.ledger.pulls import PullBook
from kv_transfer.ticket import KvTicket
from kv_transfer.wire import SILENCE_S, Hello, News, Stranger, Welcome

LAYOUT = KvLayout("bytes", 1, 1, (4,))
AT = ("host", 1)


@pytest.fixture
def book() -> PullBook:
    return PullBook(Hello("same", LAYOUT))


def ticket(name: str) -> KvTicket:
    return KvTicket(name, "engine", "host", 1, "same")


def begin(book: PullBook, name: str = "t", blocks: tuple[int, ...] = (5,)) -> int:
    """Pull, and be told of the blocks; the id of the read that follows."""
    book.pull(ticket(name), range(len(blocks)), 0, now=0)
    if book._sources.welcome_of(AT) is None:
        book.handle_message(AT, WELCOME, now=0)
    book.handle_message(AT, News(name, 0, blocks), now=0)
    (order,), book.orders = book.orders, []
    return order.read_id


WELCOME = Welcome("engine", "same", LAYOUT, (), (b"card",), "machine")


def test_a_read_that_never_ends_ends_its_pull(book: PullBook) -> None:
    """TensorRT-LLM#12542: the source lives, and its bytes do not come."""
    read = begin(book)
    for beat in (1.0, 2.0):
        book.handle_message(AT, News("t", 1, ()), now=beat)
        book.tick(beat)
    assert book.to_disconnect == [AT]
    assert book.arrived == []  # it may still write
    book.read_done(read, TransferCancelled(), now=2)
    (arrived,) = book.arrived
    assert isinstance(arrived.error, PeerUnreachable)


def test_a_source_that_welcomes_twice_is_still_the_one_whose_reads_are_stuck(
    book: PullBook,
) -> None:
    """Hello is said again if its answer is late, and then answered twice."""
    read = begin(book)
    again = Welcome("engine", "same", LAYOUT, (), (b"card",), "machine")
    book.handle_message(AT, again, now=0.3)
    for beat in (1.0, 2.0):
        book.handle_message(AT, News("t", 1, ()), now=beat)
        book.tick(beat)
    assert book.to_disconnect == [AT]
    book.read_done(read, PeerUnreachable("cancelled"), now=2)
    assert isinstance(book.arrived[0].error, PeerUnreachable)


def test_another_engine_at_the_same_address_is_another_link(book: PullBook) -> None:
    begin(book)
    other = Welcome("another engine", "same", LAYOUT, (), (b"card",), "machine")
    book.handle_message(AT, other, now=0.3)
    assert book._sources.welcome_of(AT) is other


def test_a_read_from_a_source_that_does_not_know_us_any_more_is_not_waited_for(
    book: PullBook,
) -> None:
    """Its machine was started anew, so nobody ends the old connection, and Hello is not said
    again before the next pull.
    """
    read = begin(book)
    book.handle_message(AT, Stranger("t"), now=0.1)
    assert book.to_disconnect == [AT]
    assert book.arrived == []  # it may still write
    book.read_done(read, TransferCancelled(), now=0.1)
    (arrived,) = book.arrived
    assert isinstance(arrived.error, LeaseExpired)


def test_reads_that_end_one_by_one_are_not_stuck(book: PullBook) -> None:
    reads = [begin(book, name) for name in "tuv"]
    for beat, read in enumerate(reads, 1):
        for name in "tuv":
            book.handle_message(AT, News(name, 1, ()), now=beat)
        book.tick(beat)
        assert book.to_disconnect == []
        book.read_done(read, None, now=beat)


def test_a_source_is_stuck_by_its_own_reads_alone(book: PullBook) -> None:
    """The other one's go on: that helps nobody here, and nothing is wrong there."""
    other = ("host", 2)
    for at in (AT, other):
        book.pull(KvTicket(f"of {at[1]}", "engine", *at, "same"), range(2), 0, now=0)
        book.handle_message(at, replace(WELCOME), now=0)
        book.handle_message(at, News(f"of {at[1]}", 0, (5,)), now=0)
    book.read_done(book.orders[1].read_id, None, now=1)
    book.handle_message(AT, News("of 1", 1, ()), now=1)
    book.handle_message(other, News("of 2", 1, (6,)), now=1)
    book.tick(2)
    assert book.to_disconnect == [AT]


def test_a_read_is_stuck_however_many_begin_after_it(book: PullBook) -> None:
    """Or a source whose memory is gone would be asked for more for ever."""
    book.pull(ticket("t"), range(9), 0, now=0)
    book.handle_message(AT, WELCOME, now=0)
    for count in range(9):
        now = count / 4
        book.handle_message(AT, News("t", count, (count,)), now=now)
        book.tick(now)
    assert len(book.orders) > 1
    assert book.to_disconnect == [AT]


def test_a_read_of_many_blocks_may_take_longer(book: PullBook) -> None:
    begin(book, blocks=tuple(range(1000)))
    for beat in range(1, 11):
        book.handle_message(AT, News("t", 1000, ()), now=beat)
        book.tick(beat)
    assert book.to_disconnect == []


def test_large_blocks_may_take_as_long_as_a_slow_network_needs_and_not_for_ever() -> None:
    """Those of 128 tokens of a large model, over 1 Gbit/s."""
    layout = KvLayout("bytes", 128, 1, (40 << 20,))
    book = PullBook(Hello("same", layout))
    book.pull(ticket("t"), range(100), 0, now=0)
    book.handle_message(AT, replace(WELCOME, layout=layout), now=0)
    needed_s = 100 * layout.block_bytes[0] * 8 // 10**9
    for beat in range(needed_s + 1):
        book.handle_message(AT, News("t", 0, tuple(range(100))), now=beat)
        book.tick(beat)
        assert book.to_disconnect == []
    book.handle_message(AT, News("t", 100, ()), now=2 * needed_s)
    book.tick(2 * needed_s)
    assert book.to_disconnect == [AT]


def test_a_thread_that_was_away_does_not_hold_that_time_against_reads(book: PullBook) -> None:
    read = begin(book)
    book.restart_timeouts(100)
    book.handle_message(AT, News("t", 1, ()), now=100)
    book.tick(100)
    assert book.to_disconnect == []
    book.read_done(read, None, now=100)


def test_an_abandoned_pull_does_not_wait_for_a_stuck_read(book: PullBook) -> None:
    begin(book)
    book.abandon(ticket("t"), now=0)
    book.tick(SILENCE_S - 0.1)
    assert book.to_disconnect == []
    book.tick(SILENCE_S + 0.1)
    assert book.to_disconnect == [AT]
    book.tick(9)
    assert book.to_disconnect == [AT]  # once
