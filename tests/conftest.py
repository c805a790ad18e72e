"""What holds for every test."""

import os
import random
import sys
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import settings

# a busy machine is no failure; what is tried is the same each time, or a run may fail by chance
settings.register_profile("pdserve", deadline=None, derandomize=True)
settings.register_profile("anew", deadline=None)
settings.load_profile("pdserve")

if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined


def own_cores() -> None:
    """Of several processes that run tests, each has its own cores: threads hold up nobody."""
    worker, count = (
        os.environ.get(f"PYTEST_XDIST_{name}") for name in ("WORKER", "WORKER_COUNT")
    )
    if worker is None or count is None:
        return
    every = sorted(os.sched_getaffinity(0))
    if ours := every[int(worker.removeprefix("gw")) :: int(count)]:
        os.sched_setaffinity(0, ours)


own_cores()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """What a test and its fixtures draw are its own numbers, the same each time."""
    if not settings().derandomize:
        return
    seed = crc32(item.nodeid.encode())
    random.seed(seed)
    for library, reseed in (("numpy.random", "seed"), ("torch", "manual_seed")):
        if library in sys.modules:
            getattr(sys.modules[library], reseed)(seed)
