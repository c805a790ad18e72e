"""Rows and pieces move the same bytes as the runs they are made of, and nothing outside."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import KvRegion
from kv_transfer.descriptors import Rows, device_of, pieces, rows_of

BLOCKS = 50
REGIONS = [KvRegion(1000, 4, BLOCKS, "cpu"), KvRegion(5000, 6, BLOCKS, "cuda:3")]
runs = st.integers(0, BLOCKS - 1).flatmap(
    lambda first: st.tuples(st.just(first), st.integers(1, BLOCKS - first))
)


def test_rows_go_region_by_region_with_each_ones_device() -> None:
    rows = rows_of(REGIONS, [2, 7], [3, 1])
    assert rows.tolist() == [[1008, 12, 0], [1028, 4, 0], [5012, 18, 3], [5042, 6, 3]]
    assert [device_of(region) for region in REGIONS] == [("DRAM", 0), ("VRAM", 3)]


@pytest.mark.parametrize(("first", "count"), [(-1, 2), (BLOCKS - 1, 2), (BLOCKS, 1)])
def test_a_run_that_leaves_the_memory_is_refused(first: int, count: int) -> None:
    with pytest.raises(IndexError):
        rows_of(REGIONS, [0, first], [1, count])


@given(st.lists(runs, min_size=1), st.integers(1, 300))
def test_pieces_move_each_byte_once_and_in_order(
    asked: list[tuple[int, int]], most: int
) -> None:
    theirs = rows_of(REGIONS, [first for first, _ in asked], [count for _, count in asked])
    ours = theirs + np.array([[10_000, 0, 0]], dtype=np.uint64)
    cut = list(pieces(ours, theirs, most))
    moved = [
        pair for here, there in cut for pair in zip(_bytes(here), _bytes(there), strict=True)
    ]
    wanted = list(zip(_bytes(ours), _bytes(theirs), strict=True))
    assert moved == wanted
    assert all(0 < here[:, 1].sum() < 2 * most for here, _ in cut)
    total = int(ours[:, 1].sum())
    assert len(cut) <= -(-total // most)


def _bytes(rows: Rows) -> Iterator[tuple[int, int]]:
    for address, size, device in rows.tolist():
        yield from ((byte, device) for byte in range(address, address + size))
