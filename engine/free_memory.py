"""How much main memory this process can still allocate, on the machine or in its container.

The page cache counts as free, because the system reclaims it.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from engine.control_groups import ROOT, groups_of_kind, number_in, number_named, unified_groups

KIB = 1024
UNIFIED = "memory.max", "memory.current", "inactive_file"  # of control groups, version 2
OLDER = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"


def free_memory_bytes(root: Path = ROOT) -> int:
    """The smallest amount left of the machine's memory and of our control groups' limits.

    `root` is the folder that contains `proc` and `sys`.
    """
    machine = number_named(root / "proc/meminfo", "MemAvailable:")
    if machine is None:
        available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        available = machine * KIB
    newer = _left(unified_groups(root), UNIFIED)
    older = _left(groups_of_kind(root, "memory"), OLDER)
    return max(0, min([available, *newer, *older]))


def _left(groups: Iterable[Path], names: tuple[str, str, str]) -> Iterator[int]:
    """The bytes left in each of these control groups that has a limit."""
    limit_file, used_file, reclaimable = names
    for folder in groups:
        limit, used = number_in(folder / limit_file), number_in(folder / used_file)
        if limit is not None and used is not None:
            yield limit - used + (number_named(folder / "memory.stat", reclaimable) or 0)
