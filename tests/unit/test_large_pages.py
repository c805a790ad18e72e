"""Small weights that are neighbours come to lie in large pages, and say what they said."""

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from engine.kernels.cpu.large_pages import PAGE, gather

THERE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def large_at(address: int) -> int:
    """Bytes of large pages in the mapping at an address."""
    here = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in (span := line.split()[0]) and not span.endswith(":"):
            first, end = (int(one, 16) for one in span.split("-"))
            here = first <= address < end
        elif here and span == "AnonHugePages:":
            return int(line.split()[1]) << 10
    raise LookupError(hex(address))


@pytest.mark.skipif(
    sys.platform != "linux" or not THERE.exists() or "[never]" in THERE.read_text(),
    reason="this system has no large pages",
)
def test_neighbours_share_large_pages() -> None:
    memory = mmap.mmap(-1, 4 * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    view = np.frombuffer(memory, np.uint8)
    view[:] = np.arange(4 * PAGE) % 251
    first = -(-view.ctypes.data // PAGE) * PAGE
    before = large_at(first)
    weights = [(first + PAGE * at // 3, PAGE // 3) for at in range(7)]
    if not gather(weights):
        pytest.skip("none is free now, or this Linux does not collapse")
    assert large_at(first) > before
    assert (view == np.arange(4 * PAGE) % 251).all()


def test_what_is_not_mapped_is_left_alone() -> None:
    nobodys = (1 << 46) + PAGE  # below the heap, where nothing is unasked
    assert gather([(nobodys, 100)]) == 0
