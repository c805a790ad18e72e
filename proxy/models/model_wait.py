"""Limits how long requests wait for a model and its text, and how many wait."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from api.errors import ModelNotFound, TooBusy
from proxy.admission.limits import QUEUED
from proxy.errors import NoNodeAvailable

RETRY_S = 0.05
STARTUP_S = 3.0  # after a start: by then all nodes have registered
RETRYABLE = (TooBusy, ModelNotFound, NoNodeAvailable)
Found = TypeVar("Found")


@dataclass(slots=True)
class ModelWait:
    """A request waits `wait_s` for text, and until `startup_s` after the start for an unknown
    model; never beyond its timeout, by default `timeout_s`. At most `most` requests wait, as
    each holds its body in memory.
    """

    wait_s: float = 30.0
    startup_s: float = STARTUP_S
    timeout_s: float | None = None
    most: int = QUEUED
    clock: Callable[[], float] = time.monotonic
    waiting: int = 0
    _begun: float = field(init=False)

    def __post_init__(self) -> None:
        """`startup_s` counts from now."""
        self._begun = self.clock()

    async def wait(self, find: Callable[[], Found], timeout_s: float | None) -> Found:
        """Call `find` until it succeeds; raises its last error."""
        begun, waits = self.clock(), False
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        try:
            while True:
                try:
                    return find()
                except RETRYABLE as reason:
                    full = not waits and self.waiting >= self.most
                    if full or self._is_over(reason, begun, timeout_s):
                        raise
                self.waiting += not waits
                waits = True
                await asyncio.sleep(RETRY_S)
        finally:
            self.waiting -= waits

    def _is_over(self, reason: Exception, begun: float, timeout_s: float | None) -> bool:
        now = self.clock()
        if timeout_s is not None and now - begun >= timeout_s:
            return True
        if isinstance(reason, TooBusy):
            return now - begun >= self.wait_s
        return now - self._begun >= self.startup_s
