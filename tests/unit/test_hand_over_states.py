"""The picture of a hand-over's states, and nothing beside it."""

import itertools

import pytest

from kv_transfer.errors import LeaseExpired, PeerUnreachable, TransferCancelled, TransferError
from kv_transfer.ledger.offers import OfferBook
from kv_transfer.ledger.pull import Pull
from kv_transfer.ledger.state import NEXT, HandOverState, IllegalTransition
from kv_transfer.ticket import KvTicket
from kv_transfer.wire import SILENCE_S, Gone, Leave, News, Settle
from tests.unit.test_offers import LAYOUT, SEALED, WELCOME, A, enter, look, said


@pytest.fixture
def book() -> OfferBook:
    return OfferBook(lambda: WELCOME, "same", LAYOUT, "engine")


WAY = [
    HandOverState.QUEUED,
    HandOverState.FILLING,
    HandOverState.SEALED,
    HandOverState.PULLING,
    HandOverState.SETTLING,
    HandOverState.SETTLED,
]
ENDS = {
    HandOverState.SETTLED,
    HandOverState.WITHDRAWN,
    HandOverState.EXPIRED,
    HandOverState.FAILED,
}


def test_the_way_through_is_one_line_with_two_short_cuts() -> None:
    ahead = {
        (state, later)
        for number, state in enumerate(WAY)
        for later in WAY[number + 1 :]
        if later in NEXT[state]
    }
    straight = set(itertools.pairwise(WAY))
    no_block, at_the_source = (
        (HandOverState.QUEUED, HandOverState.SEALED),
        (HandOverState.PULLING, HandOverState.SETTLED),
    )
    assert ahead == straight | {no_block, at_the_source}


@pytest.mark.parametrize("number", range(len(WAY)))
def test_nothing_goes_back(number: int) -> None:
    assert not NEXT[WAY[number]].intersection(WAY[: number + 1])


@pytest.mark.parametrize(
    "state", [s for s in HandOverState if s not in {*ENDS, HandOverState.ENDING}]
)
def test_it_can_end_badly_at_any_time(state: HandOverState) -> None:
    bad = {HandOverState.WITHDRAWN, HandOverState.EXPIRED, HandOverState.FAILED}
    assert NEXT[state] > bad | {HandOverState.ENDING}


def test_what_ends_badly_does_not_end_well() -> None:
    assert NEXT[HandOverState.ENDING] == ENDS - {HandOverState.SETTLED}


@pytest.mark.parametrize("end", [state for state in HandOverState if state in ENDS])
def test_an_end_is_the_end(end: HandOverState) -> None:
    assert end.is_over
    for state in HandOverState:
        with pytest.raises(IllegalTransition):
            end.to(state)


@pytest.mark.parametrize(
    ("sealed", "looked", "left"),
    [(True, False, False), (False, True, False), (True, True, True)],
)
def test_what_is_not_all_there_or_is_nobodys_cannot_be_settled(
    book: OfferBook, sealed: bool, looked: bool, left: bool
) -> None:
    enter(book)
    book.offer("t", None)
    if sealed:
        book.seal("t", SEALED, now=0)
    if looked:
        look(book)
    if left:
        book.handle_message(A, Leave("t"), now=0)
    book.handle_message(A, Settle("t", pull=1), now=0)
    assert said(book) == [(A, Gone("t", "it is not sealed, or was never asked for", 1))]
    assert book.num_open == 1


def test_an_offer_ends_as_it_was_settled(book: OfferBook) -> None:
    enter(book)
    states = dict[str, HandOverState]()
    for name in ("withdrawn", "expired", "delivered"):
        book.offer(name, None)
        offer = book._offers.get(name)
        assert offer is not None
        book.seal(name, SEALED, now=0)
        look(book, key=name)
        if name == "withdrawn":
            book.withdraw(name)
        if name == "expired":
            book.expire(SILENCE_S)
        if name == "delivered":
            book.handle_message(A, Settle(name), now=0)
        states[name] = offer.state
    assert states == {
        "withdrawn": HandOverState.WITHDRAWN,
        "expired": HandOverState.EXPIRED,
        "delivered": HandOverState.SETTLED,
    }


def test_a_sealed_offer_is_as_it_is(book: OfferBook) -> None:
    book.offer("t", None)
    book.extend("t", [1])
    book.seal("t", SEALED, now=0)
    book.extend("t", [])
    with pytest.raises(IllegalTransition):
        book.extend("t", [2])
    with pytest.raises(IllegalTransition):
        book.seal("t", SEALED, now=0)


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (TransferCancelled(), HandOverState.WITHDRAWN),
        (LeaseExpired("over"), HandOverState.EXPIRED),
        (PeerUnreachable("silent"), HandOverState.FAILED),
    ],
)
def test_a_pull_that_failed_ends_as_its_error_says(
    error: TransferError, state: HandOverState
) -> None:
    pull = Pull(KvTicket("t", "engine", "host", 1, "same"), 0.0)
    pull.fail(error)
    pull.end()
    assert pull.state is state


def test_a_pull_that_was_confirmed_is_settled() -> None:
    pull = Pull(KvTicket("t", "engine", "host", 1, "same"), 0.0)
    pull.take_news(News("t", 0, (), SEALED), now=0)
    pull.begin([], 0)
    pull.settle(now=0)
    assert pull.end().sealed == SEALED
    assert pull.state is HandOverState.SETTLED
