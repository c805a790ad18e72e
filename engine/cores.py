"""How many cores this process can keep busy, on the machine or in its container.

A container's limit on CPU time (Kubernetes' `limits.cpu`) leaves all cores of the machine
visible. A process with a thread for each of them uses up its time early in every period of the
kernel's scheduler, and then all its threads stand still until the next one.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from engine.control_groups import ROOT, groups_of_kind, number_in, unified_groups


def usable_cores(root: Path = ROOT) -> int:
    """The cores that we may run on, or the whole cores of our tightest CPU limit if fewer.

    At least 1. `root` is the folder that contains `proc` and `sys`.
    """
    allowed = len(os.sched_getaffinity(0))
    return max(1, min([allowed, *map(int, _limits(root))]))


def _limits(root: Path) -> Iterator[float]:
    """The cores' worth of time of each of our control groups that has a limit."""
    for folder in unified_groups(root):
        with suppress(OSError, ValueError):
            quota, period = (folder / "cpu.max").read_text().split()
            if quota != "max":
                yield int(quota) / int(period)
    for folder in groups_of_kind(root, "cpu"):
        quota_us = number_in(folder / "cpu.cfs_quota_us")
        period_us = number_in(folder / "cpu.cfs_period_us")
        if quota_us is not None and quota_us > 0 and period_us:
            yield quota_us / period_us
