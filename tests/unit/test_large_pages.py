"""Small weights that are neighbours come to lie in large pages, and say what they said."""

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from engine.large_pages import PAGE, gather, heap

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


needs_large_pages = pytest.mark.skipif(
    sys.platform != "linux" or not THERE.exists() or "[never]" in THERE.read_text(),
    reason="this system has no large pages",
)


@needs_large_pages
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


def test_the_heap_is_what_no_file_is_behind(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4 * PAGE))
    own = mmap.mmap(-1, 4 * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with path.open("r+b") as file:
        theirs = mmap.mmap(file.fileno(), 4 * PAGE, mmap.MAP_PRIVATE)
    inner = [np.frombuffer(one, np.uint8).ctypes.data + 2 * PAGE for one in (own, theirs)]
    places = list(heap())
    assert [any(at <= one < at + size for at, size in places) for one in inner] == [True, False]
    assert all(at % PAGE == size % PAGE == 0 for at, size in places)


@needs_large_pages
def test_a_heap_of_small_objects_comes_to_lie_in_large_pages() -> None:
    objects = [str(number).encode() for number in range(300_000)]
    own = [at for at, _ in heap()]
    before = sum(map(large_at, own))
    if not gather(heap()):
        pytest.skip("none is free now, or this Linux does not collapse")
    assert sum(map(large_at, [at for at, _ in heap()])) > before
    assert objects[123_456] == b"123456"
