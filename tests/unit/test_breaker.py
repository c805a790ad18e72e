"""A breaker opens for faults, lets one call through, and is opened for longer each time."""

from hypothesis import given
from hypothesis import strategies as st

from proxy.health.backoff import Backoff
from proxy.health.breaker import Breaker, BreakerRules, BreakerState

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
RULES = BreakerRules(reported_limit=3, open_s=1, longest_s=8, reset_s=60, probe_s=15)


def breaker() -> Breaker:
    return Breaker(RULES)


def state(one: Breaker, now: float, heard_at: float | None = None) -> BreakerState:
    return one.state(now=now, heard_at=now if heard_at is None else heard_at)


def test_one_that_broke_off_opens_it_at_once() -> None:
    one = breaker()
    assert one.failed(begun=0, now=0, sure=True)
    assert state(one, 0.9) is OPEN
    assert not one.admits(now=0.9, heard_at=0.9)


def test_what_a_node_owns_up_to_opens_it_at_the_third_time_in_a_row() -> None:
    one = breaker()
    assert [one.failed(begun=0, now=0, sure=False) for _ in range(2)] == [False, False]
    one.succeeded(begun=0, now=0)
    opened = [one.failed(begun=0, now=0, sure=False) for _ in range(3)]
    assert opened == [False, False, True]


def test_time_alone_does_not_half_open_it_who_is_not_heard_of_is_not_tried() -> None:
    one = breaker()
    one.failed(begun=0, now=0, sure=True)
    assert state(one, now=100, heard_at=0) is OPEN
    assert state(one, now=100, heard_at=50) is HALF_OPEN


def test_a_heartbeat_does_not_close_it() -> None:
    one = breaker()
    one.failed(begun=0, now=0, sure=True)
    assert state(one, now=0.5, heard_at=0.4) is OPEN
    assert state(one, now=5, heard_at=5) is HALF_OPEN


def test_half_open_one_call_goes_through_and_no_other_before_it_was_heard_of() -> None:
    one = breaker()
    one.failed(begun=0, now=0, sure=True)
    assert one.admits(now=2, heard_at=1)
    one.begin(now=2)
    assert not one.admits(now=3, heard_at=3)
    assert one.admits(now=2 + RULES.probe_s, heard_at=3)
    one.succeeded(begun=2, now=4)
    assert state(one, 4) is CLOSED


def test_a_call_that_was_given_up_lets_the_next_one_through() -> None:
    one = breaker()
    one.failed(begun=0, now=0, sure=True)
    one.begin(now=2)
    one.end(begun=1)  # another's
    assert not one.admits(now=3, heard_at=3)
    one.end(begun=2)
    assert one.admits(now=3, heard_at=3)


def test_each_time_it_opens_for_twice_as_long_and_no_longer_than_the_longest() -> None:
    one, now, times = breaker(), 0.0, list[float]()
    for _ in range(6):
        one.failed(begun=now, now=now, sure=True)
        times.append(one.open_for_s)
        now += one.open_for_s
        one.begin(now=now)
    assert times == [1, 2, 4, 8, 8, 8]


def test_a_node_that_answers_and_breaks_in_turns_is_left_alone_for_longer_each_time() -> None:
    one, now, times = breaker(), 0.0, list[float]()
    for _ in range(4):
        one.failed(begun=now, now=now, sure=True)
        times.append(one.open_for_s)
        now += one.open_for_s
        one.succeeded(begun=now, now=now)
    assert times == [1, 2, 4, 8]
    now += RULES.reset_s
    one.failed(begun=now, now=now, sure=True)
    assert one.open_for_s == 1  # it had been well for long


def test_streams_that_break_together_are_one_fault() -> None:
    one = breaker()
    opened = [one.failed(begun=0, now=1, sure=True) for _ in range(100)]
    assert opened == [True] + [False] * 99
    assert one.open_for_s == 1


def test_tokens_of_streams_that_began_before_do_not_close_it() -> None:
    one = breaker()
    one.failed(begun=0, now=1, sure=True)
    one.succeeded(begun=0.5, now=2)
    assert state(one, 1.5) is OPEN
    one.succeeded(begun=1.5, now=2)
    assert state(one, 2) is CLOSED


def test_who_was_started_anew_is_tried_at_once() -> None:
    one = breaker()
    for now in (0, 10, 20):
        one.failed(begun=now, now=now, sure=True)
    one.restart()
    assert state(one, 20.1) is HALF_OPEN
    one.failed(begun=20.1, now=20.2, sure=True)
    assert one.open_for_s == 8


def test_who_was_started_anew_owns_up_to_nothing_from_before() -> None:
    one = breaker()
    for begun in (0, 1):
        one.failed(begun=begun, now=begun, sure=False)
    one.restart()
    opened = [one.failed(begun=2, now=2, sure=False) for _ in range(3)]
    assert opened == [False, False, True]


def test_after_a_calm_time_nothing_is_held_against_it() -> None:
    one = breaker()
    assert one.is_reset(now=RULES.reset_s)
    one.failed(begun=0, now=0, sure=True)
    one.succeeded(begun=2, now=2)
    assert not one.is_reset(now=1 + RULES.reset_s)
    assert one.is_reset(now=2 + RULES.reset_s)


STEPS = st.lists(
    st.tuples(st.sampled_from(["fail", "tell", "work", "begin"]), st.floats(0, 20)), max_size=40
)


@given(STEPS)
def test_whatever_comes_it_closes_by_calls_only_and_is_open_for_a_time_only(
    steps: list[tuple[str, float]],
) -> None:
    one, now = breaker(), 0.0
    for what, after_s in steps:
        before = state(one, now)
        now += after_s
        assert (state(one, now) is CLOSED) is (before is CLOSED)  # time closes nothing
        if what == "begin":
            one.begin(now=now)
        elif what == "work":
            one.succeeded(begun=now, now=now)
            assert state(one, now) is CLOSED
        else:
            one.failed(begun=now, now=now, sure=what == "fail")
        assert one.open_for_s <= RULES.longest_s
        later = now + max(RULES.longest_s, RULES.probe_s) + 1e-6
        assert one.admits(now=later, heard_at=later)


def test_backing_off_is_longer_each_time_and_never_twice_the_same() -> None:
    backoff = Backoff(first_s=1, longest_s=8)
    assert backoff.delay_s(0) == 0
    for tries, most in enumerate((1, 2, 4, 8, 8), 1):
        delays = {backoff.delay_s(tries) for _ in range(20)}
        assert all(most / 2 <= delay <= most for delay in delays)
        assert len(delays) > 1
    assert backoff.delay_s(10**6) <= 8


def test_it_is_half_open_from_the_end_of_its_time_on() -> None:
    one = breaker()
    one.failed(begun=0, now=0, sure=True)
    assert state(one, RULES.open_s) is HALF_OPEN


def test_after_a_failed_call_the_next_time_half_open_has_a_call_of_its_own() -> None:
    one = breaker()
    one.failed(begun=0, now=0, sure=True)
    one.begin(now=1)
    one.failed(begun=1, now=2, sure=True)
    assert one.admits(now=4, heard_at=4)
    one.begin(now=4)
    one.succeeded(begun=4, now=5)
    one.failed(begun=5, now=5, sure=True)
    assert one.admits(now=13, heard_at=13)


def test_a_call_to_the_process_before_holds_up_none_to_the_new_one() -> None:
    one = breaker()
    one.failed(begun=0, now=0, sure=True)
    one.begin(now=1)
    one.restart()
    assert one.admits(now=2, heard_at=2)


def test_failures_that_were_counted_are_not_forgotten_for_being_the_first() -> None:
    one = breaker()
    one.failed(begun=100, now=100, sure=False)
    assert not one.is_reset(now=100)
    one.succeeded(begun=100, now=100)
    assert one.is_reset(now=100)


def test_one_that_just_opened_is_not_stale() -> None:
    one = breaker()
    one.failed(begun=100, now=100, sure=True)
    assert not one.is_stale(now=101)
    assert one.is_stale(now=100 + RULES.reset_s)
