"""Whom a sink has met: who forgot it is greeted again, who is not needed is let go."""

from dataclasses import dataclass, field

import pytest

from kv_transfer.api import Loan, Sealed
from kv_transfer.errors import LeaseExpired, PeerUnreachable
from kv_transfer.layout import KvLayout
from kv_transfer.ledger.known_sources import IDLE_S, Address
from kv_transfer.ledger.offers import OfferBook
from kv_transfer.ledger.pulls import PullBook
from kv_transfer.ticket import CacheHint, KvTicket
from kv_transfer.wire import (
    SILENCE_S,
    Abandon,
    Ask,
    Drive,
    FromSink,
    Gone,
    Hello,
    Lent,
    Look,
    News,
    Stranger,
    Welcome,
)

LAYOUT = KvLayout("bytes", 1, 1, (4,))
HELLO = Hello("same", LAYOUT)
AT: Address = ("host", 1)


def welcome(engine_id: str = "engine") -> Welcome:
    return Welcome(engine_id, "same", LAYOUT, (), (b"card",), "machine")


def ticket(name: str = "t", engine_id: str | None = "engine", port: int = 1) -> KvTicket:
    return KvTicket(name, engine_id, "host", port, "same")


@dataclass
class Sink:
    """A sink's book that does what it is told to at once."""

    book: PullBook = field(default_factory=lambda: PullBook(HELLO))

    def said(self) -> list[FromSink]:
        out, self.book.outbox = self.book.outbox, []
        return [message for _, message in out]

    def talk(self, source: OfferBook) -> None:
        """Until nobody has anything to say."""
        while messages := self.said():
            for message in messages:
                source.handle_message(b"sink", message, now=0)
            answers, source.outbox = source.outbox, []
            for _, answer in answers:
                self.book.handle_message(AT, answer, now=0)
            orders, self.book.orders = self.book.orders, []
            for order in orders:
                self.book.read_done(order.read_id, None, now=0)


@pytest.fixture
def sink() -> Sink:
    return Sink()


def source(engine_id: str) -> OfferBook:
    return OfferBook(lambda: welcome(engine_id), "same", LAYOUT, engine_id)


@pytest.mark.parametrize("engine_id", ["again", None])
def test_a_source_that_was_started_anew_is_met_anew(sink: Sink, engine_id: str | None) -> None:
    """None: a decode node that was only told the request's name, and where to ask."""
    for name in ("once", "again"):
        one = source(name)
        one.offer(f"{name}/1", name)
        one.extend(f"{name}/1", [5])
        one.seal(f"{name}/1", Sealed(1, 7), now=0)
        sink.book.pull(ticket(name, engine_id and name), [0], 0, now=0)
        sink.talk(one)
    assert [arrived.error for arrived in sink.book.arrived] == [None, None]


def test_what_is_known_of_a_source_that_has_forgotten_us_is_void(sink: Sink) -> None:
    for name in ("half", "new"):
        sink.book.pull(ticket(name), [0, 1], 0, now=0)
    sink.book.handle_message(AT, welcome(), now=0)
    sink.book.handle_message(AT, News("half", 0, (5,)), now=0)
    sink.said()
    ((order,), sink.book.orders) = sink.book.orders, []
    for name in ("new", "half", "unknown"):
        sink.book.handle_message(AT, Stranger(name), now=0)
    assert sink.said() == [HELLO, Look("new", "engine", 0)]  # one Hello is enough
    sink.book.handle_message(AT, welcome(), now=0)
    sink.book.handle_message(AT, Stranger("half"), now=0)
    sink.book.read_done(order.read_id, None, now=0)
    ((name, error),) = [(one.ticket_id, one.error) for one in sink.book.arrived]
    assert (name, type(error)) == ("half", LeaseExpired)


def test_a_source_that_does_not_know_us_yet_is_not_greeted_twice(sink: Sink) -> None:
    """Its answer to our Hello may be lost or late."""
    sink.book.hold(ticket(), now=0)
    assert sink.said() == [HELLO, Look("t", "engine", 0)]
    sink.book.handle_message(AT, Stranger("t"), now=0)
    assert sink.said() == []


def test_a_pull_that_has_failed_does_not_introduce_itself(sink: Sink) -> None:
    sink.book.hold(ticket(), now=0)
    sink.book.handle_message(AT, welcome(), now=0)
    sink.book.handle_message(AT, Gone("t", "over"), now=0)
    sink.said()
    sink.book.handle_message(AT, Stranger("t"), now=0)
    assert sink.said() == []


def test_a_source_that_was_lost_is_let_go_once_more(sink: Sink) -> None:
    """What was to be said to it opened a socket anew."""
    sink.book.hold(ticket("lost", port=1), now=0)
    sink.book.tick(SILENCE_S)
    sink.book.pull(ticket("lost", port=1), [0], 0, now=SILENCE_S)
    sink.book.tick(SILENCE_S + IDLE_S)
    assert sink.book.to_disconnect == [AT, AT]


def test_sources_that_nobody_needs_are_let_go(sink: Sink) -> None:
    """Nodes come and go, and each new one has another address."""
    sink.book.hold(ticket("held", port=1), now=0)
    sink.book.abandon(ticket("over", port=2), now=0)
    sink.book.abandon(ticket("lately", port=3), now=1)
    sink.book.handle_message(AT, welcome(), now=0)
    sink.book.handle_message(AT, News("held", 0, (), None), now=IDLE_S)
    sink.book.tick(IDLE_S)
    assert sink.book.to_disconnect == [("host", 2)]
    sink.said()
    sink.book.abandon(ticket("over", port=2), now=IDLE_S)
    sink.book.hold(ticket("held as well", port=1), now=IDLE_S)
    assert sink.said() == [Abandon("over"), Look("held as well", "engine", 0)]


def test_a_new_engine_at_an_address_ends_what_is_read_of_the_old_one(sink: Sink) -> None:
    """At its first word, not once the old one was silent for long (vllm#49238)."""
    sink.book.pull(ticket("old"), [0, 1], 0, now=0)
    sink.book.handle_message(AT, welcome(), now=0)
    sink.book.handle_message(AT, News("old", 0, (5,)), now=0)
    ((order,), sink.book.orders) = sink.book.orders, []
    sink.book.pull(ticket("new", "another"), [2], 0, now=0)
    assert HELLO in sink.said()
    assert not sink.book.has_welcome(AT, welcome("another"))
    sink.book.handle_message(AT, welcome("another"), now=0)
    assert sink.book.arrived == []  # the read may still write
    sink.book.read_done(order.read_id, None, now=0)
    ((name, error),) = [(one.ticket_id, one.error) for one in sink.book.arrived]
    assert (name, type(error)) == ("old", PeerUnreachable)
    sink.book.handle_message(AT, News("new", 0, (6,)), now=0)
    assert [one.runs[0].theirs for one in sink.book.orders] == [6]


def test_what_a_new_engine_offers_is_not_read_before_it_said_where_its_memory_is(
    sink: Sink,
) -> None:
    """Its Welcome may be lost, and that of the engine before it is all that is known."""
    sink.book.hold(ticket("old"), now=0)
    sink.book.handle_message(AT, welcome(), now=0)
    sink.book.pull(ticket("new", "another"), [2], 0, now=0)
    sink.book.handle_message(AT, News("new", 0, (6,)), now=0)
    assert sink.book.orders == []
    sink.book.handle_message(AT, welcome("another"), now=0)
    assert [one.runs[0].theirs for one in sink.book.orders] == [6]


def test_a_ticket_of_an_old_engine_leaves_the_link_to_the_new_one_alone(sink: Sink) -> None:
    sink.book.pull(ticket("new"), [0], 0, now=0)
    sink.book.handle_message(AT, welcome(), now=0)
    sink.said()
    sink.book.pull(ticket("old", "gone"), [1], 0, now=0)
    assert HELLO in sink.said()
    assert sink.book.has_welcome(AT, welcome())
    sink.book.handle_message(AT, welcome(), now=0)
    assert [type(one.error) for one in sink.book.arrived] == [PeerUnreachable]
    sink.book.handle_message(AT, News("new", 0, (5,), Sealed(1, 7)), now=0)
    assert len(sink.book.orders) == 1


def test_a_source_is_told_that_reads_may_wait_for_it() -> None:
    book = PullBook(HELLO)
    book.pull(ticket(), [0], 0, now=0)
    book.handle_message(AT, welcome("engine"), now=0)
    book.outbox.clear()
    book.needs_driving(AT, now=0)
    book.needs_driving(("nobody", 1), now=0)
    assert book.outbox == [(AT, Drive())]


def test_a_source_that_is_gone_ends_the_questions_to_it_and_no_others(sink: Sink) -> None:
    """At once: a prompt waits for the answer."""
    for port in (1, 2):
        cache = CacheHint("engine", "host", port, "same")
        sink.book.request_loan(f"from {port}", cache, (b"key",), now=0)
    sink.book.hold(ticket(), now=0)
    assert sink.book.num_open == 3  # the thread keeps awake for each
    sink.book.fail_source(AT, PeerUnreachable("gone"))
    assert sink.book.pending_loans.answered == [Loan("from 1")]
    assert sink.book.num_open == 2


@pytest.mark.parametrize("how", ["silence", "end"])
def test_a_source_is_greeted_once_before_it_is_asked_and_every_question_ends(
    sink: Sink, how: str
) -> None:
    cache = CacheHint("engine", "host", 1, "same")
    for name in ("one", "two"):
        sink.book.request_loan(name, cache, (b"key",), now=5)
    one, two = (Ask(name, "engine", (b"key",)) for name in ("one", "two"))
    assert sink.said() == [HELLO, one, two]
    if how == "silence":
        sink.book.tick(5 + SILENCE_S)
    else:
        sink.book.abandon_all(now=5)
    assert sink.book.pending_loans.answered == [Loan("one"), Loan("two")]


def test_a_late_answer_that_lends_nothing_needs_none(sink: Sink) -> None:
    sink.book.handle_message(AT, Lent("unknown"), now=0)
    assert sink.said() == []
    sink.book.handle_message(AT, Lent("unknown", "loan", 2), now=0)
    assert sink.said() == [Abandon("loan")]
    sink.book.request_loan("known", CacheHint("engine", "host", 1, "same"), (), now=0)
    sink.said()
    sink.book.handle_message(AT, Lent("known", "loan", 2), now=0)
    assert sink.said() == []
