"""What of many pulls is due at a turn: the same as if all were looked at, without that."""

from collections.abc import Iterator
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.errors import TransferCancelled
from kv_transfer.ledger.leases import LeaseTable
from kv_transfer.ledger.open_pulls import OpenPulls
from kv_transfer.ledger.pull import Pull
from kv_transfer.ticket import KvTicket
from kv_transfer.wire import BEAT_S, SILENCE_S, News


def held(name: str, now: float, host: str = "h") -> Pull:
    return Pull(KvTicket(name, "engine", host, 1, "same"), now)


def test_a_look_is_due_a_beat_after_the_last() -> None:
    pulls, one, two = OpenPulls(), held("1", 0), held("2", 0)
    for pull, now in ((one, 0.0), (two, 0.125)):
        pulls.add(pull)
        pulls.look(pull, now=now)
    assert pulls.due(BEAT_S, now=BEAT_S - 0.01) == []
    assert pulls.due(BEAT_S, now=BEAT_S) == [one]
    pulls.look(one, now=BEAT_S)
    assert pulls.due(BEAT_S, now=BEAT_S + 0.125) == [two]


def test_a_pull_that_is_over_sends_none_and_keeps_no_other_from_it() -> None:
    pulls, over, on = OpenPulls(), held("over", 0), held("on", 0)
    for pull in (over, on):
        pulls.add(pull)
        pulls.look(pull, now=0)
    over.fail(TransferCancelled())
    assert pulls.due(BEAT_S, now=BEAT_S) == [on]


def test_a_source_is_forgotten_with_its_last_pull() -> None:
    pulls, one, two = OpenPulls(), held("1", 0), held("2", 0)
    pulls.add(one)
    pulls.add(two)
    pulls.remove(one)
    assert (set(pulls.sources), pulls.at(("h", 1))) == ({("h", 1)}, (two,))
    pulls.remove(two)
    assert (set(pulls.sources), pulls.at(("h", 1)), len(pulls)) == (set(), (), 0)


def test_a_turn_looks_at_no_pull_of_which_nothing_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def all_of(_: OpenPulls) -> Iterator[NoReturn]:
        raise AssertionError("a turn went through all pulls")

    asked = list[str]()

    def is_due(pull: Pull, beat_s: float, *, now: float) -> bool:
        asked.append(pull.ticket.ticket_id)
        return now - 9 >= beat_s

    pulls = OpenPulls()
    for number in range(100):
        pull = held(str(number), 9)
        pulls.add(pull)
        pulls.look(pull, now=9)
    monkeypatch.setattr(OpenPulls, "__iter__", all_of)
    monkeypatch.setattr(Pull, "is_due", is_due)
    assert (pulls.due(BEAT_S, now=9.1), pulls.silent(now=9.1)) == ([], [])
    assert asked == ["0"]


def test_a_turn_goes_through_all_pulls_only_when_one_may_be_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pulls, pull, looks = OpenPulls(), held("1", 0), list[float]()
    pulls.add(pull)
    pull.take_news(News("1", 0, ()), now=1)

    def all_of(_: OpenPulls) -> Iterator[Pull]:
        looks.append(now)
        return iter([pull])

    monkeypatch.setattr(OpenPulls, "__iter__", all_of)
    for now in (1.0, SILENCE_S, SILENCE_S + 0.5, SILENCE_S + 1):
        assert pulls.silent(now=now) == ([pull] if now == SILENCE_S + 1 else [])
    assert looks == [SILENCE_S, SILENCE_S + 1]


def test_a_pull_that_is_over_is_looked_at_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    pulls, over, asked = OpenPulls(), held("over", 0), list[str]()

    def sends_looks(pull: Pull) -> bool:
        asked.append(pull.ticket.ticket_id)
        return False

    pulls.add(over)
    pulls.look(over, now=0)
    monkeypatch.setattr(Pull, "sends_looks", property(sends_looks))
    for _ in range(2):
        assert pulls.due(BEAT_S, now=BEAT_S) == []
    assert asked == ["over"]


DO = st.sampled_from(("start", "hear", "fail", "remove"))
STEPS = st.lists(st.tuples(DO, st.integers(0, 4), st.integers(0, 8)), max_size=40)


@given(STEPS)
def test_who_is_silent_is_what_a_look_at_all_would_tell(
    steps: list[tuple[str, int, int]],
) -> None:
    pulls, now = OpenPulls(), 0.0
    for what, number, later in steps:
        now += later * SILENCE_S / 8
        pull = pulls.get(str(number))
        if pull is None:
            pulls.add(held(str(number), now))
        elif what == "hear":
            pull.take_news(News(str(number), 0, (), None), now=now)
        elif what == "fail":
            pull.fail(TransferCancelled())
        elif what == "remove":
            pulls.remove(pull)
        alive = [one for one in pulls if one.error is None]
        late = [one for one in alive if now - one.heard_at >= SILENCE_S]
        assert pulls.silent(now=now) == late
        for one in late:
            one.fail(TransferCancelled())


RENEWALS = st.lists(
    st.tuples(st.integers(0, 4), st.none() | st.integers(0, 20), st.integers(0, 4)), max_size=40
)


@given(RENEWALS)
def test_a_lease_expires_when_a_look_at_all_would_end_it(
    renewals: list[tuple[int, int | None, int]],
) -> None:
    leases, deadlines, now = LeaseTable(), dict[str, float | None](), 0.0
    for number, until, later in renewals:
        name, now = str(number), now + later
        if name not in deadlines:
            leases.open(name)
        deadlines[name] = until
        assert leases.renew(name, until=until)
        late = {one for one, at in deadlines.items() if at is not None and at <= now}
        assert set(leases.expire(now)) == late
        for one in late:
            del deadlines[one]
        assert len(leases) == len(deadlines)
