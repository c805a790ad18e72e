"""Memory in pages of 2 MiB, though what lies in it is smaller, or across their borders.

Whoever reads memory in pages of 4 KiB waits for each to be found. A product of a few rows does,
which reads its weight at the rate of memory, and so does a program of many small objects that
has not run for a moment. Allocators ask for large pages where one thing is larger than that;
what is smaller lies in the heap, behind one another. Once all of it is there, it is gathered
(madvise(2): MADV_HUGEPAGE, and MADV_COLLAPSE of Linux 6.1, which copies now).
"""

import ctypes
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

PAGE = 1 << 21
MAPS = Path("/proc/self/maps")
_HUGEPAGE, _COLLAPSE = 14, 25


def gather(places: Iterable[tuple[int, int]]) -> int:
    """Of (address, bytes); how many large pages hold some of them now.

    Where the system has none, or not now, or other memory than the heap's is beside, nothing
    changes, but for time.
    """
    if sys.platform != "linux":
        return 0
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    pages = sorted({page for at, size in places for page in _pages(at, size)})
    for page in pages:  # all of them first: neighbours become one mapping
        madvise(page * PAGE, PAGE, _HUGEPAGE)
    return sum(madvise(page * PAGE, PAGE, _COLLAPSE) == 0 for page in pages)


def heap() -> Iterator[tuple[int, int]]:
    """Where this process has memory of its own that no file is behind, in whole large pages:
    proc_pid_maps(5). Nothing, where the system does not say.
    """
    if not MAPS.exists():
        return
    for line in MAPS.read_text().splitlines():
        span, rights, _, _, file, *name = line.split()
        first, end = (int(one, 16) for one in span.split("-"))
        first, end = -(-first // PAGE) * PAGE, end // PAGE * PAGE
        ours = rights == "rw-p" and file == "0" and name in ([], ["[heap]"])
        if ours and first < end:
            yield first, end - first


def _pages(at: int, size: int) -> range:
    return range(at // PAGE, -(-(at + size) // PAGE))
