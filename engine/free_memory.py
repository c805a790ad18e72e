"""How much main memory this process can still allocate, on the machine or in its container.

The page cache counts as free, because the system reclaims it.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

ROOT = Path("/")
KIB = 1024
UNIFIED = "memory.max", "memory.current", "inactive_file"  # of control groups, version 2
OLDER = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"


def free_memory_bytes(root: Path = ROOT) -> int:
    """The smallest amount left of the machine's memory and of our control groups' limits.

    `root` is the folder that contains `proc` and `sys`.
    """
    machine = _line(root / "proc/meminfo", "MemAvailable:")
    if machine is None:
        available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        available = machine * KIB
    return max(0, min([available, *_left_in_groups(root)]))


def _left_in_groups(root: Path) -> Iterator[int]:
    """The bytes left in each of our control groups that has a limit."""
    said = ""
    with suppress(OSError):
        said = (root / "proc/self/cgroup").read_text()
    mounted = root / "sys/fs/cgroup"
    for entry in said.splitlines():
        _, kinds, path = entry.split(":", 2)
        if kinds == "":
            yield from _left_upwards(mounted, path, UNIFIED)
        elif "memory" in kinds.split(","):
            yield from _left_upwards(mounted / "memory", path, OLDER)


def _left_upwards(mounted: Path, path: str, names: tuple[str, str, str]) -> Iterator[int]:
    """The same for a group and its ancestors; a container may see its own group as the root."""
    limit_file, used_file, reclaimable = names
    inner = PurePosixPath("/", path)
    for group in (inner, *inner.parents):
        folder = mounted / group.relative_to("/")
        limit, used = _number(folder / limit_file), _number(folder / used_file)
        if limit is not None and used is not None:
            yield limit - used + (_line(folder / "memory.stat", reclaimable) or 0)


def _number(file: Path) -> int | None:
    """The number in a file; None if it has none, such as `max`."""
    with suppress(OSError, ValueError):
        return int(file.read_text())
    return None


def _line(file: Path, name: str) -> int | None:
    """The number that follows `name` in a file."""
    with suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            if line.split()[:1] == [name]:
                return int(line.split()[1])
    return None
