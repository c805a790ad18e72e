"""Metrics of failures: failed calls, attempts, retries, breakers and refused registrations."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from discovery.registry import Registry
from proxy.health.breaker import BreakerState
from proxy.health.health import Health

NOT_CLOSED = (BreakerState.OPEN, BreakerState.HALF_OPEN)


@dataclass(frozen=True, slots=True, eq=False)
class FailureMetrics(Collector):
    """Read when Prometheus scrapes; the names of all metrics begin with `prefix`."""

    health: Health
    prefix: str
    clock: Callable[[], float] = time.monotonic
    began: float = field(default_factory=time.time)

    def collect(self) -> Iterator[Metric]:
        """Counters, and how many breakers are not closed right now."""
        health, prefix = self.health, self.prefix
        yield _counts(prefix + "node_failures", "Calls that failed", "node", health.failures)
        text = "Attempts of choices and of pooling calls, retries included"
        yield CounterMetricFamily(prefix + "tries", text, health.attempts, created=self.began)
        yield _counts(prefix + "retries", "Attempts after the first", "reason", health.retries)
        yield _counts(prefix + "breakers_opened", "Breakers that opened", "of", health.opened)
        yield self._states()

    def _states(self) -> Metric:
        now, health = self.clock(), self.health
        found = Counter(("node", health.state(one, now=now)) for one in health.registry.all())
        found.update(("pair", state) for _, state in health.unhealthy_pairs(now=now))
        states = GaugeMetricFamily(
            self.prefix + "breakers", "Breakers that are not closed", labels=["of", "state"]
        )
        for of, state in product(("node", "pair"), NOT_CLOSED):
            states.add_metric([of, state], found[of, state])
        return states


@dataclass(frozen=True, slots=True, eq=False)
class RefusedRegistrations(Collector):
    """Messages at the discovery port that were dropped, by reason."""

    registry: Registry
    prefix: str

    def collect(self) -> Iterator[Metric]:
        """One counter."""
        name, dropped = self.prefix + "registrations_refused", self.registry.refused
        yield _counts(name, "Messages dropped", "reason", dropped)


def _counts(name: str, help_text: str, label: str, values: Mapping[Any, int]) -> Metric:
    counted = CounterMetricFamily(name, help_text, labels=[label])
    for key, value in values.items():
        counted.add_metric([key], value)
    return counted
