"""An engine has a thread for each core that it may keep busy, and a container has few."""

import os
from pathlib import Path

import pytest

from engine.cores import usable_cores
from tests.unit.test_free_memory import placed

ALL = 8
NEWER = {
    "proc/self/cgroup": "0::/pod/one\n",
    "sys/fs/cgroup/pod/one/cpu.max": "max 100000\n",
    "sys/fs/cgroup/pod/cpu.max": "350000 100000\n",
}
OLDER = {
    "proc/self/cgroup": "7:cpu,cpuacct:/seen/from/outside\n0::/\n",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
}


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, ALL),
        (NEWER, 3),
        (OLDER, 2),
        ({**NEWER, "sys/fs/cgroup/pod/cpu.max": "max 100000\n"}, ALL),
        ({**NEWER, "sys/fs/cgroup/pod/cpu.max": "6400000 100000\n"}, ALL),
        ({**NEWER, "sys/fs/cgroup/pod/cpu.max": "50000 100000\n"}, 1),
        ({**NEWER, "sys/fs/cgroup/pod/one/cpu.max": "150000 100000\n"}, 1),
        ({**NEWER, "sys/fs/cgroup/pod/cpu.max": "no number\n"}, ALL),
        ({**OLDER, "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n"}, ALL),
    ],
)
def test_the_tightest_limit_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(ALL)))
    assert usable_cores(placed(tmp_path, files)) == cores


def test_this_machine_has_some() -> None:
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))
