"""Rate limits per key and minute over all workers: each publishes what it has admitted.

A worker admits what is left of the whole limit, as far as it has heard from the others: what
they admitted in the last `PUBLISH_S` is not counted yet.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from proxy.admission.rates import BucketReport, RateBuckets
from proxy.workers.api import RATES, PeerWorkers

PUBLISH_S = 0.05
Total = tuple[str, str, float, float]


@dataclass(slots=True)
class SharedRates:
    """Publishes this worker's totals while `run` runs, and applies those of the others."""

    rates: RateBuckets
    peers: PeerWorkers
    name: str
    publish_s: float = PUBLISH_S
    clock: Callable[[], float] = time.monotonic
    _published: frozenset[Total] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        """Register for updates, which may come from now on."""
        self.peers.update_handlers[RATES] = self._apply

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await asyncio.sleep(self.publish_s)
            await self.publish()

    async def publish(self) -> None:
        """Share the totals if they changed since the last time."""
        totals = self.rates.reports(now=self.clock())
        current = frozenset((one.name, one.what, one.since, one.total) for one in totals)
        if current != self._published:
            self._published = current
            await self.peers.put(RATES, self.name, msgspec.msgpack.encode(totals))

    def _apply(self, name: str, value: bytes | None) -> None:
        if name != self.name and value is not None:
            totals = msgspec.msgpack.decode(value, type=list[BucketReport])
            self.rates.apply_reports(name, totals, now=self.clock())
