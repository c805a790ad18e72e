"""Restarts the proxy with an allocator that keeps small allocations together.

After startup, glibc's heap is fragmented, and malloc places small blocks all over it. Encoding
a short text takes over a thousand of them, each a cache miss: a third of what that text costs a
busy proxy. TBB's allocator keeps blocks of one size side by side.

An allocator must be preloaded when a program starts, so the program is executed again.
"""

import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

PRELOAD = "LD_PRELOAD"
SEPARATORS = " :"  # of LD_PRELOAD, so no path may contain them
PACKAGE = "tbb"
LIBRARIES = ("libtbbmalloc.so.2", "libtbbmalloc_proxy.so.2")


def restart_with_preload(libraries: Sequence[str]) -> None:
    """Execute this program again with LD_PRELOAD, unless that is set already."""
    if libraries and PRELOAD not in os.environ:
        environment = {**os.environ, PRELOAD: ":".join(libraries)}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def tbb_libraries() -> Sequence[str]:
    """The paths of TBB's allocator if it is installed, else nothing."""
    try:
        files = distribution(PACKAGE).files or ()
    except PackageNotFoundError:
        return ()
    found = {file.name: str(Path(str(file.locate())).resolve()) for file in files}
    paths = [found[name] for name in LIBRARIES if name in found]
    sane = all(not set(SEPARATORS).intersection(path) and Path(path).exists() for path in paths)
    return paths if sane and len(paths) == len(LIBRARIES) else ()
