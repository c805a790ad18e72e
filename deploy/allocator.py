"""Memory of a process by an allocator that keeps small pieces together.

The C library gives each small piece whichever hole it finds, and after a start there are holes
everywhere between what stays. To encode a short text takes over a thousand pieces, each of
which is looked for in memory that no core has near: a third of what that text costs a proxy
that is doing other things as well. TBB's allocator has pieces of one size side by side.

An allocator has to be there when a program begins, so the program begins anew with it.
"""

import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

PRELOAD = "LD_PRELOAD"
APART = " :"  # what parts one library from the next there, so none may have it in its name
PACKAGE = "tbb"
LIBRARIES = ("libtbbmalloc.so.2", "libtbbmalloc_proxy.so.2")


def begin_with(libraries: Sequence[str]) -> None:
    """Begin this program anew with them, once. Whoever has preloaded anything has chosen."""
    if libraries and PRELOAD not in os.environ:
        environment = {**os.environ, PRELOAD: ":".join(libraries)}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def of_tbb() -> Sequence[str]:
    """TBB's allocator where it is installed, else nothing."""
    try:
        files = distribution(PACKAGE).files or ()
    except PackageNotFoundError:
        return ()
    found = {file.name: str(Path(str(file.locate())).resolve()) for file in files}
    paths = [found[name] for name in LIBRARIES if name in found]
    sane = all(not set(APART).intersection(path) and Path(path).exists() for path in paths)
    return paths if sane and len(paths) == len(LIBRARIES) else ()
