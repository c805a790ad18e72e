"""What Prometheus is told of failures: which there were, and what was made of them."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from proxy.health.breaker import BreakerState
from proxy.health.health import Health

NOT_CLOSED = (BreakerState.OPEN, BreakerState.HALF_OPEN)


@dataclass(frozen=True, slots=True, eq=False)
class Troubles(Collector):
    """Read off when somebody asks; the names of all its metrics begin with `prefix`."""

    health: Health
    prefix: str
    clock: Callable[[], float] = time.monotonic

    def collect(self) -> Iterator[Metric]:
        """Counters, and how many breakers are not closed just now."""
        health = self.health
        yield self._counts("node_failures", "Calls that failed", "node", health.failures)
        yield self._counts("retries", "Attempts after the first", "reason", health.retries)
        yield self._counts("breakers_opened", "Breakers that opened", "of", health.opened)
        dropped = health.registry.refused
        yield self._counts("registrations_refused", "Messages dropped", "reason", dropped)
        yield self._states()

    def _counts(
        self, name: str, help_text: str, label: str, values: Mapping[Any, int]
    ) -> Metric:
        counted = CounterMetricFamily(self.prefix + name, help_text, labels=[label])
        for key, value in values.items():
            counted.add_metric([key], value)
        return counted

    def _states(self) -> Metric:
        now, health = self.clock(), self.health
        found = Counter(("node", health.state(one, now=now)) for one in health.registry.all())
        found.update(("pair", state) for _, state in health.pairs(now=now))
        states = GaugeMetricFamily(
            self.prefix + "breakers", "Breakers that are not closed", labels=["of", "state"]
        )
        for of, state in product(("node", "pair"), NOT_CLOSED):
            states.add_metric([of, state], found[of, state])
        return states
