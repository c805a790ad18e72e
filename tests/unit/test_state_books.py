"""States that are read in pieces, in both books: when, in what order, and with what sums."""

from kv_transfer.api import Sealed
from kv_transfer.checking import CheckLevel
from kv_transfer.errors import CorruptKv
from kv_transfer.ledger.offers import OfferBook
from kv_transfer.ledger.pulls import PullBook
from kv_transfer.regions import BlockRun
from kv_transfer.ticket import KvTicket
from kv_transfer.wire import FromSource, Hello, Look, News, Welcome
from tests.fakes.sharded import layout
from tests.fakes.sharded_states import Net

ONE, TWO = (Net(layers=4).beside(layout(16, heads=4, ranks=ranks)) for ranks in (1, 2))
WELCOME = Welcome("engine", "same", ONE, (), (b"card",), "machine")
SEALED, AT, A = Sealed(20, 42), ("host", 1), b"a"
TICKET = KvTicket("t", "engine", "host", 1, "same")
KV, STATE = (4, 5), (6, 7)  # blocks of theirs: three layers fit into one, four are in two
INTO = [10, 11, 12, 13]


def source(level: CheckLevel) -> OfferBook:
    book = OfferBook(lambda: WELCOME, "same", ONE, "engine", level)
    book.offer("t", None)
    book.handle_message(A, Hello("same", TWO, level), now=0)
    return book


def look(book: OfferBook, known: int) -> FromSource:
    book.handle_message(A, Look("t", "engine", known), now=0)
    told, book.outbox = book.outbox[-1][1], []
    return told


def make_sums(book: OfferBook, most: int = 10) -> list[tuple[int, list[int]]]:
    """As many as there are slots; the blocks of each order, and where they are counted."""
    orders = book.missing_checksums(most)
    for order in orders:
        count = order.seen.our_slots * len(order.blocks)
        book.add_checksums(order, range(100 * order.start, 100 * order.start + count))
    return [(order.start, list(order.blocks)) for order in orders]


def test_a_state_has_its_sums_before_the_offer_is_told_to_be_sealed() -> None:
    book = source(CheckLevel.FULL)
    look(book, 0)
    book.extend("t", [*KV, *STATE])
    assert make_sums(book) == [(0, [*KV, *STATE])]
    assert make_sums(book) == []  # whether these are all is not known
    book.seal("t", SEALED, now=0)
    told = look(book, 0)
    assert isinstance(told, News)
    assert (len(told.sums), told.sealed, told.state_sums) == (4, None, ())
    assert make_sums(book, most=1) == [(4, [6])]
    told = look(book, 4)
    assert isinstance(told, News)
    assert (told.sealed, told.state_sums) == (None, ())
    assert make_sums(book, most=1) == [(5, [7])]
    book.flush()
    (_, told) = book.outbox.pop()
    assert isinstance(told, News)
    assert (told.blocks, told.sums, told.sealed) == ((), (), SEALED)
    assert told.state_sums[:4] == (400, 401, 402, 500)
    assert not book.wants_checksums


def test_without_checksums_a_state_waits_for_nothing() -> None:
    book = source(CheckLevel.OFF)
    book.extend("t", [*KV, *STATE])
    book.seal("t", SEALED, now=0)
    assert look(book, 0) == News("t", 0, (*KV, *STATE), SEALED)


def sink(level: CheckLevel) -> PullBook:
    book = PullBook(Hello("same", TWO, level))
    book.pull(TICKET, INTO, 0, now=0)
    book.handle_message(AT, WELCOME, now=0)
    return book


def test_a_state_is_read_behind_its_kv() -> None:
    """And only when the KV is here: connectors list the pieces of one read at a time."""
    book = sink(CheckLevel.OFF)
    book.handle_message(AT, News("t", 0, (*KV, *STATE)), now=0)
    (kv,) = book.orders
    assert list(kv.runs) == [BlockRun(4, 10, 2)]
    book.handle_message(AT, News("t", 4, (), SEALED), now=0)
    assert book.orders == [kv]
    book.read_done(kv.read_id, None, now=0)
    state = book.orders[-1]
    assert list(state.runs) == [BlockRun(18, 36, 4)]
    assert (state.cut.their_slots, state.cut.our_slots) == (3, 3)
    book.read_done(state.read_id, None, now=0)
    assert len(book.orders) == 2


def test_a_state_without_sums_is_not_taken() -> None:
    book = sink(CheckLevel.FULL)
    news = News("t", 0, (*KV, *STATE), SEALED, (1, 2, 3, 4), CheckLevel.FULL)
    book.handle_message(AT, news, now=0)
    (arrived,) = book.arrived
    assert isinstance(arrived.error, CorruptKv)


def test_each_slot_of_a_state_has_a_sum() -> None:
    book = sink(CheckLevel.FULL)
    sums = (1, 2, 3, 4), CheckLevel.FULL
    news = News("t", 0, (*KV, *STATE), SEALED, *sums, state_sums=(5, 6, 7, 8, 9, 9))
    book.handle_message(AT, news, now=0)
    (kv,) = book.orders
    book.read_done(kv.read_id, None, now=0)
    checks = [told for order in book.orders for _, told in order.checks]
    assert checks == [1, 2, 5, 6, 7, 8]
