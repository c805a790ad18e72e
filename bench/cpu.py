"""CPU time and wake-ups by process, as the operating system accounts for them."""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

WAITS = re.compile(r"^voluntary_ctxt_switches:\s+(\d+)$", re.MULTILINE)
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process with all its threads."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / TICKS_PER_S


def wake_ups(pid: int) -> int:
    """How often its threads have gone on after they had waited: voluntary context switches."""
    total = 0
    for task in Path(f"/proc/{pid}/task").glob("*/status"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            total += sum(map(int, WAITS.findall(task.read_text())))
    return total


def children(pid: int) -> Iterable[int]:
    """The processes that a process has started."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def family_seconds(family: dict[str, int]) -> dict[str, float]:
    """CPU seconds by name, for each named process and the engine that it has started."""
    engines = {
        f"{name}'s engine": child
        for name, pid in family.items()
        if pid != os.getpid()
        for child in children(pid)
    }
    return {name: cpu_seconds(pid) for name, pid in (family | engines).items()}
