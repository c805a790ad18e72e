"""What the measurement of hand-overs counts, and what it compares."""

import pytest

from bench.transfer.figures import GIB, KIB, MIB, Figures, Stages, at_once, repeats, size_name
from bench.transfer.memory import Memory

STAGES = Stages(offered=1.0, pulled=1.5, ordered=2.0, read=4.0, arrived=4.25)


def test_the_fixed_cost_is_all_but_the_bytes() -> None:
    assert STAGES.seconds == 3.25
    assert STAGES.fixed == 1.25
    assert sum(STAGES.split().values()) == STAGES.seconds
    assert STAGES.split()["bytes"] == 2.0


def test_a_share_is_of_medians() -> None:
    ours, floor = Figures(100, [9.0, 1.0, 2.0]), Figures(100, [1.0, 1.0, 50.0])
    assert ours.rate == 50
    assert ours.share_of(floor) == 0.5
    assert (
        str(Figures(2 * 10**9, [0.5])) == "   4.00 GB/s; alone p50  500000.0 p99  500000.0 us"
    )


def test_a_rate_is_of_several_at_once_and_latency_of_one_alone() -> None:
    both = Figures(2 * 10**9, alone=[1.0], together=[0.5, 0.5, 9.0])
    assert str(both) == "   4.00 GB/s; alone p50 1000000.0 p99 1000000.0 us"


@pytest.mark.parametrize(
    ("num_bytes", "name"),
    [(512, "512 B"), (4 * KIB, "4 KiB"), (MIB, "1 MiB"), (GIB, "1 GiB"), (1500, "1500 B")],
)
def test_sizes_have_names(num_bytes: int, name: str) -> None:
    assert size_name(num_bytes) == name


def test_small_sizes_are_moved_more_often() -> None:
    assert [repeats(size) for size in (KIB, 16 * MIB, GIB)] == [200, 40, 5]


def test_the_largest_go_one_by_one() -> None:
    assert [at_once(size) for size in (KIB, 16 * MIB, 64 * MIB, GIB)] == [8, 8, 2, 1]


def test_scattered_blocks_are_all_different_and_not_in_order() -> None:
    memory = Memory(16 * 4096, 4096)
    assert memory.blocks(5 * 4096, "contiguous", 0) == [[0, 1, 2, 3, 4]]
    assert memory.blocks(2 * 4096, "contiguous", 0, times=3) == [[0, 1], [2, 3], [4, 5]]
    (scattered,) = memory.blocks(16 * 4096, "scattered", 0)
    apart = memory.blocks(8 * 4096, "scattered", 0, times=2)
    assert [block for one in apart for block in one] == scattered
    assert sorted(scattered) == list(range(16)) != scattered
    assert bytes(memory.bytes[:2]) == b"\1\1"
