"""What admission learns of requests that ended, and how long it says that others will wait."""

from proxy.admission.admission import MOST_GUESSED
from proxy.admission.limits import KeyLimits
from proxy.admission.pools import NodeCounts
from proxy.admission.queue import QueueEntry
from tests.fakes.limits import limits
from tests.unit.test_admission import Door, door

ONE_AT_ONCE = KeyLimits(max_requests=1)
PACE = 10  # tokens per second


def paced(crowd: Door) -> Door:
    """It has seen one choice with PACE tokens in a second."""
    one = crowd.come("before", tokens=PACE)
    crowd.now += 1
    crowd.whole(one)
    return crowd


def wait_s(crowd: Door, entry: QueueEntry) -> float | None:
    assert entry.began is None
    return crowd.admission.wait_s(entry, crowd.nodes)


def test_tokens_beyond_the_estimate_count_against_the_key() -> None:
    crowd = door(requests=2)
    grown, other = crowd.come("a"), crowd.come("b")
    crowd.come("a")
    next_of_b = crowd.come("b")
    crowd.admission.record_tokens(grown, 30)
    crowd.whole(other)
    assert crowd.inside == [grown, next_of_b]


def test_tokens_that_did_not_come_are_given_back_to_the_key() -> None:
    crowd = door(requests=2)
    short, other = crowd.come("a", tokens=100), crowd.come("b", tokens=100)
    crowd.come("b")
    next_of_a = crowd.come("a")
    crowd.admission.record_tokens(short, 10)
    crowd.end(short)
    assert crowd.inside == [other, next_of_a]


def test_a_request_that_failed_says_nothing_of_answers_or_their_pace() -> None:
    crowd = door(requests=1)
    failed = crowd.come(tokens=4096, prompt_tokens=100)
    waits = crowd.come()
    crowd.now += 1
    crowd.end(failed)
    assert crowd.admission.estimate("a", 4096) == 4096
    assert waits.began is not None
    assert wait_s(crowd, crowd.come()) is None


def test_the_key_whose_answer_is_known_longest_is_forgotten_first() -> None:
    crowd = door()
    for name in (*map(str, range(MOST_GUESSED)), "0", "new"):
        one = crowd.come(name)
        crowd.now += 1
        crowd.whole(one)
    known = [crowd.admission.estimate(name, 4096) < 4096 for name in ("0", "1", "2")]
    assert known == [True, False, True]


def test_keys_with_nothing_at_work_are_not_kept() -> None:
    crowd = door()
    crowd.end(crowd.come())
    assert not crowd.admission._keys


def test_a_pace_is_of_one_choice() -> None:
    crowd = door(requests=2)
    two = crowd.come(tokens=100, choices=2)
    crowd.now += 1
    crowd.whole(two)
    crowd.come(choices=2)
    assert wait_s(crowd, crowd.come(tokens=100)) == 100 / 2 / 50


def test_a_key_at_its_limit_waits_for_its_own_requests() -> None:
    crowd = paced(door())
    for name in ("b", "c", "d"):
        crowd.come(name)
    crowd.come("a", ONE_AT_ONCE)
    crowd.come("a", ONE_AT_ONCE, tokens=30)
    assert wait_s(crowd, crowd.come("a", ONE_AT_ONCE, tokens=20)) == (30 + 20) / PACE


def test_of_all_that_a_request_waits_for_the_longest_counts() -> None:
    crowd = paced(door(requests=2))
    crowd.come("a", ONE_AT_ONCE)
    crowd.come("b")
    assert wait_s(crowd, crowd.come("a", ONE_AT_ONCE, tokens=20)) == 20 / PACE


def test_a_request_that_would_fit_waits_for_those_ahead() -> None:
    crowd = paced(door(tokens=100))
    crowd.come(tokens=60)
    crowd.come(tokens=500)
    assert wait_s(crowd, crowd.come(tokens=10)) == (500 + 10) / PACE


def test_prompts_that_run_side_by_side_make_room_sooner() -> None:
    crowd = door(prefill_requests=2)
    crowd.nodes = NodeCounts(1, 1)
    first, _second, waits = crowd.come(), crowd.come(), crowd.come()
    crowd.now += 1
    crowd.came(first, 1)
    assert waits in crowd.inside
    assert wait_s(crowd, crowd.come()) == 1 / 2


def test_requests_ahead_are_those_more_urgent_and_a_fair_share_of_the_rest() -> None:
    line = door(requests=1)
    line.come()
    heavy = KeyLimits(weight=3.0)
    line.come("b", heavy, tokens=7, priority=-1)
    for _ in range(9):
        line.come("b", heavy, tokens=10)
    light = line.come("c", KeyLimits(weight=0.5), tokens=5)
    assert line.admission.queue.ahead_of(light) == 7 + 3 * 5 / 0.5
    line.come("b", heavy, tokens=1000, priority=1)
    assert line.admission.queue.ahead_of(light) == 7 + 3 * 5 / 0.5


def test_a_keys_own_tokens_are_limited_too() -> None:
    crowd, few = door(), KeyLimits(max_tokens=15)
    crowd.come("a", few)
    assert crowd.come("a", few).began is None
    assert crowd.come("b", few).began is not None


def test_who_waits_for_decode_nodes_does_not_wait_for_vectors() -> None:
    crowd = door(node_requests=1, prefill_requests=1)
    crowd.nodes = NodeCounts(1, 1)
    crowd = paced(crowd)
    crowd.admission.record_tokens(crowd.come("b"), 1)
    crowd.come(pooled=True, tokens=100)
    assert crowd.come(pooled=True, tokens=1000).began is None
    assert wait_s(crowd, crowd.come(tokens=20)) == 20 / PACE


def test_a_line_for_each_node_is_a_limit_of_nodes() -> None:
    assert limits(node_queued=1).of_nodes
    assert not limits(requests=1, tokens=1).of_nodes
