"""Neighbours travel together, and nobody gets lost."""

import itertools
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.blocks.runs import expand_runs, merge_runs, pair_runs

pairs = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)))
first, counts = st.integers(0, 20), st.integers(1, 3)
neighbours = st.builds(
    lambda theirs, ours, count: [(theirs + i, ours + i) for i in range(count)],
    first, first, st.integers(1, 100),
)  # fmt: skip
many = st.lists(neighbours, min_size=1).map(lambda some: [pair for one in some for pair in one])


@given(pairs | many)
def test_runs_are_the_same_pairs_in_the_same_order(pairs: list[tuple[int, int]]) -> None:
    runs = pair_runs([theirs for theirs, _ in pairs], [ours for _, ours in pairs])
    spelled = [(run.theirs + i, run.ours + i) for run in runs for i in range(run.count)]
    assert spelled == pairs
    for one, two in itertools.pairwise(runs):
        assert (one.theirs + one.count, one.ours + one.count) != (two.theirs, two.ours)


def test_neighbours_on_one_side_only_are_two_runs() -> None:
    assert [run.count for run in pair_runs([1, 2, 3, 5], [1, 2, 5, 6])] == [2, 1, 1]


@given(st.lists(st.tuples(first, counts)))
def test_on_one_side_those_that_follow_one_another_are_one(
    asked: list[tuple[int, int]],
) -> None:
    found = merge_runs(*np.array(asked, dtype=np.int64).reshape(-1, 2).T)
    assert spelled(found) == spelled(asked)
    assert all(a + n != b for (a, n), (b, _) in itertools.pairwise(found))


def spelled(found: Sequence[tuple[int, int]]) -> list[int]:
    return [first + i for first, count in found for i in range(count)]


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 4)), min_size=1, max_size=4))
def test_every_block_of_a_run_is_listed_in_order(runs: list[tuple[int, int]]) -> None:
    firsts, counts = np.array(runs, dtype=np.int64).T
    listed = [block for first, count in runs for block in range(first, first + count)]
    assert expand_runs(firsts, counts).tolist() == listed
