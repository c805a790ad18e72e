"""Engines that start on one device take turns.

An engine sizes its KV by what is free on its device before and after its weights are there
(engine/running/kv_room.py). What another one takes meanwhile would count as its own. So all of
a start, from the first look to the last graph, is made with a lock on each of its devices:
a file in the folder for temporary ones, unlocked by the kernel with the end of who has it.
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

    None of a CPU, nor of what is no device: whoever opens it says so.
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
def alone_on(devices: Sequence[str], folder: Path) -> Iterator[None]:
    """Wait until nobody else starts on any of them; all take them in the same order."""
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
