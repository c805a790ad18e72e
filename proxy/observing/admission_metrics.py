"""Metrics of admission and of client connections, read when Prometheus scrapes."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from api.door.limiter import ConnectionLimiter
from proxy.admission.gate import BUCKETS_S, AdmissionGate
from proxy.observing.metrics import PREFIX


@dataclass(frozen=True, slots=True, eq=False)
class AdmissionMetrics(Collector):
    """The admission queue and the admitted requests, as far as limits count them."""

    gate: AdmissionGate

    def collect(self) -> Iterator[Metric]:
        """All metrics of admission."""
        line, at_work = self.gate.admission.queue, self.gate.admission.in_use
        yield _gauge("queued_requests", "Queued requests", len(line))
        yield _gauge("queued_tokens", "Estimated tokens of queued requests", line.tokens)
        yield _gauge("admitted_choices", "Choices in flight that limits count", at_work.choices)
        yield _gauge("admitted_tokens", "Estimated tokens of those choices", at_work.tokens)
        yield self._waits()
        name, help_text = PREFIX + "refusals", "Requests refused or cut off, by reason"
        refusals = CounterMetricFamily(name, help_text, labels=["reason"])
        for reason, count in self.gate.admission.refused.items():
            refusals.add_metric([reason], count)
        yield refusals

    def _waits(self) -> Metric:
        waits, bounds = self.gate.waits, [*map(floatToGoString, BUCKETS_S), "+Inf"]
        family = HistogramMetricFamily(PREFIX + "queue_seconds", "Time in line")
        counts = list(map(float, accumulate(waits.counts)))
        family.add_metric([], list(zip(bounds, counts, strict=True)), waits.sum_s)
        return family


@dataclass(frozen=True, slots=True, eq=False)
class ConnectionMetrics(Collector):
    """Client connections, and those that were refused or cut."""

    limiter: ConnectionLimiter

    def collect(self) -> Iterator[Metric]:
        """All metrics of connections."""
        limiter = self.limiter
        yield _gauge("connections", "Open client connections", len(limiter.connections))
        yield _gauge("body_bytes", "Bytes of request bodies in memory", limiter.held_bytes)
        name, help_text = (
            PREFIX + "connections_refused",
            "Connections refused or cut, by reason",
        )
        refused = CounterMetricFamily(name, help_text, labels=["reason"])
        for reason, count in limiter.refused.items():
            refused.add_metric([reason], count)
        yield refused


def _gauge(name: str, help_text: str, value: float) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, help_text)
    family.add_metric([], value)
    return family
