"""Detects other engine processes on the same cores: without --threads each uses all of them."""

import os
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

from engine.settings import EngineConfig

PROC = Path("/proc")
ENGINE = b"node.engine_process"
Cores = Callable[[int], Iterable[int]]


def engines_sharing_cores(proc: Path = PROC, cores_of: Cores = os.sched_getaffinity) -> int:
    """How many other visible engine processes may run on a core of this one."""
    ours, others = set(cores_of(0)), (int(one.name) for one in proc.glob("[0-9]*"))
    engines = (one for one in others if one != os.getpid() and _is_engine(proc / str(one)))
    return sum(not ours.isdisjoint(_cores(one, cores_of)) for one in engines)


def threads_advice(config: EngineConfig, beside: int, cores: int) -> str | None:
    """A warning for the log that cores are shared; None if not, or if --threads is set."""
    if not beside or config.threads is not None or config.device != "cpu":
        return None
    share = max(1, cores // (beside + 1))
    return (
        f"this node takes all {cores} cores, on which engines of {beside} other nodes run: "
        f"they hold each other up; start each with its part, such as --threads {share}"
    )


def _is_engine(process: Path) -> bool:
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:  # it is gone
        return False
    return (b"-m", ENGINE) in pairwise(words)


def _cores(process: int, cores_of: Cores) -> Iterable[int]:
    try:
        return cores_of(process)
    except OSError:
        return ()
