"""Weights in pages of 2 MiB, though they are smaller than that, or lie across their borders.

A product of a few rows reads its weight at the rate of memory, and in pages of 4 KiB it waits
for each to be found. Torch asks for large pages where a tensor is larger than one; smaller
weights lie in the heap, behind one another. Once all are there, the heap around them is
gathered into large pages (madvise(2): MADV_HUGEPAGE, and MADV_COLLAPSE of Linux 6.1, which
copies now).
"""

import ctypes
import sys
from collections.abc import Iterable

PAGE = 1 << 21
_HUGEPAGE, _COLLAPSE = 14, 25


def gather(weights: Iterable[tuple[int, int]]) -> int:
    """Of (address, bytes); how many large pages hold some of them now.

    Where the system has none, or not now, or other memory than the heap's is beside, nothing
    changes, but for time.
    """
    if sys.platform != "linux":
        return 0
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    pages = sorted({page for at, size in weights for page in _pages(at, size)})
    for page in pages:  # all of them first: neighbours become one mapping
        madvise(page * PAGE, PAGE, _HUGEPAGE)
    return sum(madvise(page * PAGE, PAGE, _COLLAPSE) == 0 for page in pages)


def _pages(at: int, size: int) -> range:
    return range(at // PAGE, -(-(at + size) // PAGE))
