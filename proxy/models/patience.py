"""How long requests wait for a model to be there with its text, and how many of them do."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from api.errors import ModelNotFound, TooBusy
from proxy.admission.limits import QUEUED
from proxy.errors import NoNodeAvailable

LOOK_AGAIN_S = 0.05
SETTLE_S = 3.0  # after a start: all nodes were heard of by then
LATER = (TooBusy, ModelNotFound, NoNodeAvailable)
Found = TypeVar("Found")


@dataclass(slots=True)
class Patience:
    """Text is waited for `wait_s`, a name that nobody has said for `settle_s` after the start;
    neither for longer than a request has time, which is `timeout_s` if it says nothing. No more
    than `most` wait, as each keeps its body meanwhile.
    """

    wait_s: float = 30.0
    settle_s: float = SETTLE_S
    timeout_s: float | None = None
    most: int = QUEUED
    clock: Callable[[], float] = time.monotonic
    waiting: int = 0
    _begun: float = field(init=False)

    def __post_init__(self) -> None:
        """The clock is read once, to know when everybody has had time to register."""
        self._begun = self.clock()

    async def wait(self, find: Callable[[], Found], timeout_s: float | None) -> Found:
        """What is found in the end; raises the last reason for which it was not."""
        begun, waits = self.clock(), False
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        try:
            while True:
                try:
                    return find()
                except LATER as reason:
                    full = not waits and self.waiting >= self.most
                    if full or self._is_over(reason, begun, timeout_s):
                        raise
                self.waiting += not waits
                waits = True
                await asyncio.sleep(LOOK_AGAIN_S)
        finally:
            self.waiting -= waits

    def _is_over(self, reason: Exception, begun: float, timeout_s: float | None) -> bool:
        now = self.clock()
        if timeout_s is not None and now - begun >= timeout_s:
            return True
        if isinstance(reason, TooBusy):
            return now - begun >= self.wait_s
        return now - self._begun >= self.settle_s
