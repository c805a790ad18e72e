"""Puts weights into pages of 2 MiB, even those that are smaller or cross a page's border.

A product of a few rows reads its weight at memory bandwidth, and with pages of 4 KiB address
translation slows it down. Torch requests large pages for tensors larger than one; smaller
weights are neighbours in the heap. Once all are loaded, the heap around them is collapsed into
large pages (madvise(2): MADV_HUGEPAGE, and MADV_COLLAPSE of Linux 6.1, which copies at once).
"""

import ctypes
import sys
from collections.abc import Iterable

PAGE = 1 << 21
_HUGEPAGE, _COLLAPSE = 14, 25


def gather(weights: Iterable[tuple[int, int]]) -> int:
    """Move weights, as (address, bytes); returns how many large pages now hold parts of them.

    If the system has no large pages, or none free, or if a page would include memory outside
    the heap, nothing changes there.
    """
    if sys.platform != "linux":
        return 0
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    pages = sorted({page for at, size in weights for page in _pages(at, size)})
    for page in pages:  # all of them first, so that neighbours become one mapping
        madvise(page * PAGE, PAGE, _HUGEPAGE)
    return sum(madvise(page * PAGE, PAGE, _COLLAPSE) == 0 for page in pages)


def _pages(at: int, size: int) -> range:
    return range(at // PAGE, -(-(at + size) // PAGE))
