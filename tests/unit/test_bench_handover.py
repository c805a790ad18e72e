"""What the split side may take is what the other took, and not more than was asked for."""

from bench.handover import ClusterTimes, HandoverComparison
from bench.load import Outcome


def side(first: float, between: list[float]) -> ClusterTimes:
    one = ClusterTimes("one")
    one.book(Outcome(first_token=[first], between_tokens=between, stages={"prefill": [0.5]}))
    return one


def test_the_second_token_is_held_apart_from_later_ones() -> None:
    one = side(1.0, [0.4, 0.1, 0.2, 0.3])
    assert (one.first, one.second, one.later) == ([1.0], [0.4], [0.2])
    assert one.stages == {"prefill": [0.5]}


def test_a_hop_and_five_percent_a_step_and_no_more() -> None:
    alone = side(1.0, [0.1, 0.1, 0.1])
    verdict = HandoverComparison.of(side(1.06, [0.2, 0.1, 0.1]), alone, hop=0.01)
    assert str(verdict).splitlines() == [
        "first token: 1060.0 ms split, 1060.0 ms asked for: reached",
        "second after it: 200.0 ms split, 200.0 ms asked for: reached",
    ]
    late = HandoverComparison.of(side(1.07, [0.25, 0.1, 0.1]), alone, hop=0.01)
    assert str(late).count("not reached") == 2
