"""A thread is late until it is back, and was away after that; who watches it may doubt once."""

from dataclasses import dataclass

import pytest

from kv_transfer.thread.watchdog import AWAY_S, TurnWatchdog

LATE_S = 1.0


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def thread(clock: Clock) -> TurnWatchdog:
    return TurnWatchdog(clock, 0.0)


def test_to_wait_as_long_as_it_was_meant_to_is_no_absence(
    clock: Clock, thread: TurnWatchdog
) -> None:
    thread.begin_wait(5.0)
    clock.now += 5.0 + AWAY_S - 0.01
    assert thread.late_s == pytest.approx(AWAY_S - 0.01)
    thread.begin_work()
    assert thread.late_s == 0.0
    clock.now += AWAY_S - 0.01
    thread.end_turn()
    assert not thread.was_away()


def test_who_is_back_is_late_no_more(clock: Clock, thread: TurnWatchdog) -> None:
    """Whoever waited for the end of a long turn, to step in, comes too late."""
    thread.begin_work()
    clock.now += LATE_S
    assert not thread.is_stuck(LATE_S)
    thread.end_turn()
    assert not thread.is_stuck(LATE_S)
    assert thread.late_s == 0.0
    assert thread.was_away()


def test_neither_is_what_passes_between_two_turns(clock: Clock, thread: TurnWatchdog) -> None:
    thread.begin_work()
    thread.end_turn()
    clock.now += 60.0
    thread.begin_wait(0.0)
    thread.begin_work()
    assert not thread.was_away()


def test_an_absence_during_a_turn_is_known_in_the_next(
    clock: Clock, thread: TurnWatchdog
) -> None:
    """However punctual that one begins."""
    thread.begin_work()
    clock.now += AWAY_S
    thread.end_turn()
    thread.begin_wait(1.0)
    thread.begin_work()
    assert thread.was_away()


def test_who_waits_as_long_as_it_meant_to_is_not_stuck(
    clock: Clock, thread: TurnWatchdog
) -> None:
    """However often it is looked at meanwhile."""
    thread.begin_wait(60.0)
    for _ in range(3):
        assert not thread.is_stuck(LATE_S)
        clock.now += LATE_S


@pytest.mark.parametrize("working", [True, False])
def test_an_absence_is_told_once(clock: Clock, thread: TurnWatchdog, working: bool) -> None:
    if working:
        thread.begin_work()
    else:
        thread.begin_wait(1.0)
        clock.now += 1.0
    clock.now += AWAY_S
    if working:
        thread.end_turn()
    else:
        thread.begin_work()
    assert [thread.was_away(), thread.was_away()] == [True, False]


def test_who_watches_may_have_been_away_as_well(clock: Clock, thread: TurnWatchdog) -> None:
    """Both were stopped, and the watch is back first."""
    thread.begin_wait(1.0)
    clock.now += 1.0 + LATE_S
    assert not thread.is_stuck(LATE_S)
    thread.begin_work()
    clock.now += LATE_S  # it was back in between: this is another turn
    assert not thread.is_stuck(LATE_S)
    assert thread.is_stuck(LATE_S)
    assert thread.is_stuck(LATE_S)
    thread.end_turn()
    thread.begin_wait(1.0)
    assert not thread.is_stuck(LATE_S)
