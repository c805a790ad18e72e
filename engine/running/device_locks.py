"""Locks that let only one engine at a time start on a device.

An engine sizes its KV cache by the free memory of its device before and after loading weights
(engine/running/kv_budget.py), so memory that another engine takes meanwhile would be counted
as its own. From the first measurement to the last CUDA graph, a starting engine holds a lock
on each device: a file in the temporary folder, which the kernel unlocks when its holder dies.
"""

import fcntl
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from engine.settings import EngineConfig

log = logging.getLogger(__name__)


def devices_of(config: EngineConfig) -> list[str]:
    """Names of an engine's devices that are the same for all processes.

    Empty for a CPU, and for a name that is no device: opening it reports that.
    """
    try:
        device = torch.device(config.device)
    except RuntimeError:
        return []
    if device.type != "cuda":
        return []
    first = device.index or 0
    last = min(first + config.tensor_parallel_size, torch.cuda.device_count())
    return [str(torch.cuda.get_device_properties(one).uuid) for one in range(first, last)]


@contextmanager
def lock_devices(devices: Sequence[str], folder: Path) -> Iterator[None]:
    """Wait until no other engine starts on any of them; always locked in the same order."""
    with ExitStack() as held:
        for name in sorted(devices):
            held.enter_context(_locked(folder / f"pdserve-start-{name}.lock"))
        yield


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    try:
        opened = os.open(file, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        log.warning("no turns with engines that start on the same device: %s", error)
        yield
        return
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("another engine starts on this device: waiting for it (%s)", file)
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)
