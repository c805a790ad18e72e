"""A node is not up or down for one answer's sake."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from proxy.health.probes import Probe


def told(answers: Sequence[bool], probe: Probe) -> list[bool]:
    return [probe.record_answer(well=one) for one in answers]


def test_the_third_bad_answer_in_a_row_puts_it_down_and_the_second_good_one_up() -> None:
    probe = Probe(rise=2, fall=3)
    assert told([False, False, True, False, False], probe) == [True] * 5
    assert told([False, True, False, True, True], probe) == [False, False, False, False, True]


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 4), st.integers(1, 4))
def test_it_changes_only_after_as_many_in_a_row(
    answers: list[bool], rise: int, fall: int
) -> None:
    probe, before = Probe(rise, fall), True
    for index, up in enumerate(told(answers, probe)):
        if up is not before:
            needed = rise if up else fall
            assert answers[index + 1 - needed : index + 1] == [up] * needed
        before = up
