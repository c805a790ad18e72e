"""What a key may begin in a minute: by the clock, exactly; what is refused costs nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.request import ModelKey
from proxy.admission.admission import Admission
from proxy.admission.errors import KeyQueueFull, RequestsPerMinute, TokensPerMinute
from proxy.admission.limits import AdmissionLimits, ApiCaller, KeyLimits
from proxy.admission.pools import NodeCounts
from proxy.admission.queue import QueueEntry
from proxy.admission.rates import MINUTE_S, MOST_KEPT, RateBuckets, duration

THREE = KeyLimits(requests_per_minute=3)
TOKENS = KeyLimits(tokens_per_minute=600)  # ten a second


def entry(limits: KeyLimits, name: str = "a", tokens: int = 10, prompt: int = 0) -> QueueEntry:
    return QueueEntry(name, limits, prompt, tokens)


def nobody(_model: ModelKey | None) -> NodeCounts:
    return NodeCounts()


def come(admission: Admission, one: QueueEntry, now: float) -> QueueEntry:
    admission.arrive(one, now=now, nodes=nobody)
    if one.began is None:
        admission.check_wait(one, now=now, nodes=nobody)
    return one


def remaining(admission: Admission, limits: KeyLimits, what: str, now: float) -> int:
    told = admission.rates.headers(ApiCaller("a"), limits, now=now)
    return int(told[f"x-ratelimit-remaining-{what}"])


def test_a_minutes_requests_may_come_at_once_and_then_at_their_rate() -> None:
    door = Admission()
    for _ in range(3):
        come(door, entry(THREE), 0.0)
    with pytest.raises(RequestsPerMinute, match="key 'a' may have 3 in a minute") as refused:
        come(door, entry(THREE), 1.0)
    assert (refused.value.status, refused.value.retry_after_s) == (429, 19)
    assert door.refused == {"requests_per_minute": 1}
    come(door, entry(THREE, "b"), 1.0)
    come(door, entry(THREE), 20.0)
    with pytest.raises(RequestsPerMinute):
        come(door, entry(THREE), 20.0)


def test_who_comes_back_when_he_was_told_to_is_let_in() -> None:
    door = Admission()
    come(door, entry(TOKENS, tokens=600), 0.0)
    with pytest.raises(TokensPerMinute) as refused:
        come(door, entry(TOKENS, tokens=55), 0.0)
    assert refused.value.retry_after_s == 6
    come(door, entry(TOKENS, tokens=55), 6.0)
    rounded, one_a_second = Admission(), KeyLimits(requests_per_minute=60)
    for _ in range(60):
        come(rounded, entry(one_a_second), 0.4)
    come(rounded, entry(one_a_second), 1.4)  # of which a float has a bit less than a second


def test_tokens_that_did_not_come_are_given_back_and_those_beyond_are_paid_for() -> None:
    door = Admission()
    less, more = (come(door, entry(TOKENS, tokens=200, prompt=100), 0.0) for _ in range(2))
    assert remaining(door, TOKENS, "tokens", 0.0) == 200
    door.record_tokens(less, 20)
    door.finish(less, now=0.0)
    assert remaining(door, TOKENS, "tokens", 0.0) == 280
    door.record_tokens(more, 150)
    door.finish(more, now=0.0)
    assert remaining(door, TOKENS, "tokens", 0.0) == 230


def test_what_is_larger_than_a_minute_goes_when_the_minute_is_whole_and_is_paid_for_later() -> (
    None
):
    door = Admission()
    come(door, entry(TOKENS, tokens=1200), 0.0)
    assert remaining(door, TOKENS, "tokens", 0.0) == 0
    with pytest.raises(TokensPerMinute) as refused:
        come(door, entry(TOKENS, tokens=10), 59.0)
    assert refused.value.retry_after_s == 2
    come(door, entry(TOKENS, tokens=10), 61.0)


def test_who_was_not_let_in_has_used_nothing() -> None:
    limits = KeyLimits(max_requests=1, max_queued=0, requests_per_minute=2)
    door = Admission(AdmissionLimits(queued=8))
    come(door, entry(limits), 0.0)
    for _ in range(5):
        with pytest.raises(KeyQueueFull):
            come(door, entry(limits), 0.0)
    assert remaining(door, limits, "requests", 0.0) == 1
    waits = entry(KeyLimits(max_requests=1, requests_per_minute=2))
    come(door, waits, 0.0)
    assert remaining(door, limits, "requests", 0.0) == 0
    assert door.withdraw(waits, now=0.0)
    assert remaining(door, limits, "requests", 0.0) == 1


def test_a_request_from_before_a_limit_gives_nothing_back_to_it() -> None:
    door, free = Admission(), KeyLimits()
    ends = come(door, entry(free, tokens=600), 0.0)
    waits = entry(KeyLimits(max_requests=1), tokens=600)
    come(door, waits, 0.0)
    both = KeyLimits(requests_per_minute=9, tokens_per_minute=600)
    come(door, entry(both, tokens=500), 0.0)
    door.record_tokens(ends, 100)
    assert door.withdraw(waits, now=0.0)
    door.finish(ends, now=0.0)
    assert remaining(door, both, "tokens", 0.0) == 100
    assert remaining(door, both, "requests", 0.0) == 8


def test_of_two_limits_one_that_refuses_takes_nothing_of_the_other() -> None:
    both, door = KeyLimits(requests_per_minute=9, tokens_per_minute=100), Admission()
    come(door, entry(both, tokens=100), 0.0)
    with pytest.raises(TokensPerMinute):
        come(door, entry(both, tokens=100), 0.0)
    assert remaining(door, both, "requests", 0.0) == 8


def test_headers_are_openais_and_only_of_what_is_limited() -> None:
    door = Admission()
    come(door, entry(TOKENS, tokens=86), 0.0)
    assert door.rates.headers(ApiCaller("a"), TOKENS, now=0.0) == {
        "x-ratelimit-limit-tokens": "600",
        "x-ratelimit-remaining-tokens": "514",
        "x-ratelimit-reset-tokens": "8.6s",
    }
    assert door.rates.headers(ApiCaller("a"), KeyLimits(), now=0.0) == {}


def test_a_limit_that_the_file_changes_counts_from_then_on() -> None:
    door = Admission()
    for _ in range(3):
        come(door, entry(THREE), 0.0)
    more, fewer = KeyLimits(requests_per_minute=60), KeyLimits(requests_per_minute=1)
    with pytest.raises(RequestsPerMinute) as refused:
        come(door, entry(more), 0.0)
    assert refused.value.retry_after_s == 1
    come(door, entry(more), 1.0)
    come(door, entry(fewer), 61.0)
    with pytest.raises(RequestsPerMinute) as refused:
        come(door, entry(fewer), 61.0)
    assert refused.value.retry_after_s == 60


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0ms"), (0.0174, "17ms"), (1, "1s"), (8.643, "8.64s"), (59.9, "59.9s"), (360, "6m0s")],
)
def test_times_are_written_as_openai_does(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 300)), max_size=40))
def test_no_minute_has_more_than_two_minutes_worth(calls: list[tuple[float, int]]) -> None:
    """What was saved up, and what came meanwhile; what is larger goes alone."""
    door, now, let_in = Admission(), 0.0, list[tuple[float, int]]()
    for pause, tokens in calls:
        now += pause
        try:
            come(door, entry(TOKENS, tokens=tokens), now)
        except TokensPerMinute:
            continue
        let_in.append((now, tokens))
    for begun, _ in let_in:
        minute = [tokens for at, tokens in let_in if begun <= at < begun + MINUTE_S]
        assert sum(minute) <= 2 * 600 + 1e-6


def told(one: Admission, other: Admission, now: float, name: str = "0") -> None:
    other.rates.apply_reports(name, one.rates.reports(now=now), now=now)


def test_what_one_process_lets_in_the_other_does_not_let_in_again() -> None:
    one, other = Admission(), Admission()
    for _ in range(2):
        come(one, entry(THREE), 1.0)
        told(one, other, 1.0)
    told(one, other, 1.0)  # the same once more
    come(other, entry(THREE), 1.0)
    with pytest.raises(RequestsPerMinute) as refused:
        come(other, entry(THREE), 1.0)
    assert refused.value.retry_after_s == 20
    told(other, one, 1.0)
    with pytest.raises(RequestsPerMinute):
        come(one, entry(THREE), 1.0)


def test_what_one_process_gives_back_is_there_for_the_other() -> None:
    one, other = Admission(), Admission()
    going = come(one, entry(TOKENS, tokens=600), 0.0)
    told(one, other, 0.0)
    assert remaining(other, TOKENS, "tokens", 0.0) == 0
    one.record_tokens(going, 100)
    one.finish(going, now=0.0)
    told(one, other, 0.0)
    assert remaining(other, TOKENS, "tokens", 0.0) == 500


def test_a_process_that_is_new_begins_with_what_the_others_have_left() -> None:
    one, other = Admission(), Admission()
    come(one, entry(THREE), 1.0)
    come(other, entry(THREE), 1.0)
    told(one, other, 1.0)
    told(other, one, 1.0)
    new = Admission(rates=RateBuckets(since=2.0))
    told(one, new, 2.0, "0")
    assert remaining(new, THREE, "requests", 2.0) == 1
    told(other, new, 2.0, "1")
    assert remaining(new, THREE, "requests", 2.0) == 1
    come(new, entry(THREE), 2.0)
    told(new, one, 2.0, "2")
    with pytest.raises(RequestsPerMinute):
        come(one, entry(THREE), 2.0)


def test_one_that_was_started_anew_counts_anew() -> None:
    one, other = Admission(), Admission()
    come(one, entry(THREE), 1.0)
    told(one, other, 1.0)
    again = Admission(rates=RateBuckets(since=2.0))
    come(again, entry(THREE), 3.0)
    told(again, other, 3.0)
    assert remaining(other, THREE, "requests", 3.0) == 1


def test_buckets_that_are_full_again_make_room_for_others() -> None:
    rates = RateBuckets()
    for number in range(MOST_KEPT):
        rates.begin(entry(THREE, str(number)), now=0.0)
    rates.begin(entry(THREE, "late"), now=MINUTE_S)
    assert len(rates._buckets) == 1


def test_what_is_full_again_is_forgotten_and_told_no_more() -> None:
    one, other = Admission(), Admission()
    come(one, entry(THREE), 0.0)
    told(one, other, 0.0)
    assert not one.rates.reports(now=MINUTE_S)
    told(one, other, MINUTE_S)
    assert not any(other.rates._heard.values())
    come(one, entry(THREE), MINUTE_S)
    told(one, other, MINUTE_S)
    assert remaining(other, THREE, "requests", MINUTE_S) == 2


@given(
    st.lists(st.tuples(st.integers(0, 2), st.floats(0, 5), st.integers(1, 300)), max_size=40)
)
def test_processes_that_tell_each_other_all_are_like_one(
    comers: list[tuple[int, float, int]],
) -> None:
    alone, many, now = Admission(), [Admission() for _ in range(3)], 0.0
    for place, pause, tokens in comers:
        now += pause
        outcomes = [let_in(door, tokens, now) for door in (alone, many[place])]
        assert outcomes[0] == outcomes[1]
        for other in many:
            if other is not many[place]:
                told(many[place], other, now, str(place))


def let_in(door: Admission, tokens: int, now: float) -> bool:
    try:
        come(door, entry(TOKENS, tokens=tokens), now)
    except TokensPerMinute:
        return False
    return True
