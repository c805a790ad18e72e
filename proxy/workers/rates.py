"""What a key has had of its minute at all workers together: each tells the others.

So each lets in what is left for all, but for what others have let in within the last moment.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from proxy.admission.rates import Rates, Taken
from proxy.workers.api import RATES, Siblings

TELL_S = 0.05
Total = tuple[str, str, float, float]


@dataclass(slots=True)
class SharedRates:
    """Tells, while `run` runs, what this worker takes, and takes in what others tell."""

    rates: Rates
    siblings: Siblings
    name: str
    tell_s: float = TELL_S
    clock: Callable[[], float] = time.monotonic
    _told: frozenset[Total] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        """News may come from now on."""
        self.siblings.adopts[RATES] = self._hear

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self.tell_s)
            await self.tell()

    async def tell(self) -> None:
        """If anything was taken here since it was told last."""
        words = self.rates.tell(now=self.clock())
        told = frozenset((one.name, one.what, one.since, one.total) for one in words)
        if told != self._told:
            self._told = told
            await self.siblings.put(RATES, self.name, msgspec.msgpack.encode(words))

    def _hear(self, name: str, value: bytes | None) -> None:
        if name != self.name and value is not None:
            words = msgspec.msgpack.decode(value, type=list[Taken])
            self.rates.hear(name, words, now=self.clock())
