"""Rows and pieces move the same bytes as the runs they are made of, and nothing outside."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import KvRegion
from kv_transfer.movers.descriptors import (
    Rows,
    blocks_of,
    device_of,
    numbers_of,
    pieces,
)

BLOCKS = 50
REGIONS = [KvRegion(1000, 4, BLOCKS, "cpu"), KvRegion(5000, 6, BLOCKS, "cuda:3")]
runs = st.integers(0, BLOCKS - 1).flatmap(
    lambda first: st.tuples(st.just(first), st.integers(1, BLOCKS - first))
)


def rows_of(asked: list[tuple[int, int]]) -> Rows:
    """A row for each run, region by region."""
    spelled = [
        (region.at(first), count * region.block_bytes, device_of(region)[1])
        for region in REGIONS
        for first, count in asked
    ]
    return np.array(spelled, dtype=np.uint64)


def test_memory_has_nixls_name_and_its_devices_index() -> None:
    assert [device_of(region) for region in REGIONS] == [("DRAM", 0), ("VRAM", 3)]


@given(st.lists(runs, min_size=1), st.integers(1, 300))
def test_pieces_move_each_byte_once_and_in_order(
    asked: list[tuple[int, int]], most: int
) -> None:
    theirs = rows_of(asked)
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


@given(st.lists(runs, min_size=1))
def test_numbers_name_the_same_blocks_as_rows(asked: list[tuple[int, int]]) -> None:
    prepared = [block for region in REGIONS for block in _blocks(region)]
    rows = rows_of(asked)
    firsts, counts = np.array(asked).T
    named = [prepared[number] for number in numbers_of(REGIONS, firsts, counts)]
    assert [byte for block in named for byte in block] == list(_bytes(rows))


def _blocks(region: KvRegion) -> Iterator[list[tuple[int, int]]]:
    ((address, size, device, stride, count),) = blocks_of(region).tolist()
    for start in range(address, address + count * stride, stride):
        yield [(byte, device) for byte in range(start, start + size)]


@pytest.mark.parametrize(("first", "count"), [(-1, 2), (BLOCKS - 1, 2), (BLOCKS, 1)])
def test_a_run_that_leaves_the_memory_has_no_numbers(first: int, count: int) -> None:
    with pytest.raises(IndexError):
        numbers_of(REGIONS, np.array([0, first]), np.array([1, count]))
