"""The order of jobs that wait for room on a decode node, and how one of them is found."""

from collections.abc import Iterable, Iterator
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.generator import Leg
from decode_node.backlog import Backlog
from decode_node.job import DecodeJob
from engine.request import Request, RequestId
from kv_transfer.local.connector import LocalSink, LocalSource
from kv_transfer.ticket import KvTicket
from tests.fakes.engine import FakeEngine
from tests.fakes.node import node_loop

TICKET = KvTicket("t", "engine", "h", 1, "fake")


def job(
    name: str,
    *,
    since: float = 0.0,
    waited: float = 0.0,
    priority: int = 0,
    elsewhere: bool = False,
) -> DecodeJob:
    request = Request(RequestId(name), (1, 2), priority=priority)
    leg = Leg(ticket=TICKET, waited_s=waited, elsewhere=elsewhere)
    return DecodeJob(request, TICKET, leg, since)


def names(jobs: Iterable[DecodeJob]) -> list[str]:
    return [one.request.request_id for one in jobs]


def test_urgent_jobs_come_first_then_old_ones_then_those_that_came_first() -> None:
    backlog = Backlog()
    for one in (
        job("late", since=2.0),
        job("first", since=1.0),
        job("second", since=1.0),
        job("waited elsewhere", since=2.0, waited=1.5),
        job("urgent", since=3.0, priority=-1),
    ):
        backlog.add(one)
    assert names(backlog) == ["urgent", "waited elsewhere", "first", "second", "late"]


def test_a_job_that_is_taken_out_is_not_found_any_more() -> None:
    backlog = Backlog()
    kept, gone = job("kept"), job("gone")
    backlog.add(kept)
    backlog.add(gone)
    backlog.remove(gone)
    assert backlog.find(RequestId("gone")) is None
    assert backlog.find(RequestId("kept")) is kept
    assert len(backlog) == 1
    with pytest.raises(KeyError):
        backlog.remove(gone)


def test_jobs_may_be_taken_out_while_one_looks_at_all() -> None:
    backlog = Backlog()
    for name in "abc":
        backlog.add(job(name))
    for one in backlog:
        backlog.remove(one)
    assert names(backlog) == []


def test_a_job_is_held_once() -> None:
    backlog = Backlog()
    held, free, gone = job("held"), job("free"), job("gone")
    for one in (held, free, gone):
        backlog.add(one)
    assert names(backlog.not_held()) == ["held", "free", "gone"]
    held.held = True
    backlog.remove(gone)
    assert names(backlog.not_held()) == ["free"]


LIMIT = 4
JOBS = st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(-1, 1)), max_size=30)


@given(JOBS)
def test_who_is_late_is_what_a_look_at_all_would_tell(
    jobs: list[tuple[bool, int, int]],
) -> None:
    backlog, now = Backlog(), 0
    for number, (elsewhere, later, priority) in enumerate(jobs):
        now += later
        backlog.add(job(str(number), since=now, priority=priority, elsewhere=elsewhere))
        late = [one for one in backlog if one.leg.elsewhere and now - one.since >= LIMIT]
        assert backlog.late(LIMIT, now=now) == late
        for one in late:
            backlog.remove(one)


class Unseen(list[DecodeJob]):
    """Jobs that nobody may look at."""

    def __iter__(self) -> NoReturn:
        raise AssertionError("a step went through the backlog")


def test_a_step_looks_at_no_job_that_is_held_and_not_late() -> None:
    backlog = Backlog()
    for number in range(100):
        one = job(str(number), elsewhere=True)
        backlog.add(one)
        one.held = True
    backlog._jobs = Unseen(backlog._jobs)
    assert (backlog.not_held(), backlog.late(1.0, now=0.5)) == ([], [])


def test_an_abort_looks_at_no_other_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def looked_at(_: Backlog) -> Iterator[NoReturn]:
        raise AssertionError("an abort went through the backlog")

    engine = FakeEngine()
    source = LocalSource("e", ("h", 1), engine.kv_regions, "fake", lambda: 0.0)
    sink = LocalSink({("h", 1): source}, engine.kv_regions, "fake", lambda: 0.0)
    node = node_loop(engine, source, sink, lambda: 0.0)
    for name in ("one", "two"):
        ticket = source.offer(name)
        node.submit(Request(RequestId(name), (1, 2)), Leg(ticket=ticket), 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(Backlog, "__iter__", looked_at)
        node.abort(RequestId("one"))
    assert names(node.decode._backlog) == ["two"]
