"""KV memory is a share of what there is, and in a container that is what its limit leaves."""

from pathlib import Path

import pytest

from engine.free_memory import free_memory_bytes

MACHINE = {"proc/meminfo": "MemTotal: 4000 kB\nMemFree: 10 kB\nMemAvailable:    3000 kB\n"}
ALL = 3000 * 1024
NEWER = {
    "proc/self/cgroup": "0::/pod/one\n",
    "sys/fs/cgroup/pod/one/memory.max": "max\n",
    "sys/fs/cgroup/pod/one/memory.current": "700\n",
    "sys/fs/cgroup/pod/memory.max": "1000\n",
    "sys/fs/cgroup/pod/memory.current": "800\n",
    "sys/fs/cgroup/pod/memory.stat": "anon 500\ninactive_file 300\n",
}
OLDER = {
    "proc/self/cgroup": "5:cpu,memory:/seen/from/outside\n0::/\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "2000\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "1500\n",
    "sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 40\n",
}


def placed(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, ALL),
        (NEWER, 1000 - 800 + 300),
        (OLDER, 2000 - 1500 + 40),
        ({**NEWER, "sys/fs/cgroup/pod/memory.max": str(2**60)}, ALL),
        ({**NEWER, "sys/fs/cgroup/pod/memory.current": "1500"}, 0),
        ({**NEWER, "sys/fs/cgroup/pod/memory.max": "no number"}, ALL),
    ],
)
def test_the_tightest_limit_counts(tmp_path: Path, files: dict[str, str], free: int) -> None:
    assert free_memory_bytes(placed(tmp_path, {**MACHINE, **files})) == free


def test_this_machine_has_some() -> None:
    assert free_memory_bytes() > 0


def test_without_files_to_read_the_system_is_asked(tmp_path: Path) -> None:
    assert free_memory_bytes(tmp_path) > 0
