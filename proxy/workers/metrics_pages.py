"""Merges the Prometheus pages of several processes, departed ones included. Pure.

Counters and histograms are added up, and so are gauges, such as requests in flight. A gauge in
`SHARED_VIEWS` is each process's view of the same thing: the largest value counts. Of `_created`
timestamps it is the earliest.
"""

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

SHARED_VIEWS = frozenset(
    {
        "pdserve_proxy_nodes",
        "pdserve_proxy_nodes_by_state",
        "pdserve_proxy_breakers",
        "pdserve_proxy_last_node_lost_timestamp_seconds",
    }
)
CREATED = "_created"
CUMULATIVE = ("counter", "histogram", "summary")
Labels = tuple[tuple[str, str], ...]
Combine = Callable[[float, float], float]


def merge_metrics(pages: Iterable[bytes], *, cumulative_only: bool = False) -> bytes:
    """Merge pages; `cumulative_only`: without gauges, for processes that ended."""
    found = dict[str, Metric]()
    values = dict[tuple[str, str, Labels], Sample]()
    for page in pages:
        for family in text_string_to_metric_families(page.decode()):
            lasts = family.type in CUMULATIVE or family.name.endswith(CREATED)
            if cumulative_only and not lasts:
                continue
            found.setdefault(family.name, family)
            for sample in family.samples:
                key = (family.name, sample.name, tuple(sorted(sample.labels.items())))
                values[key] = _combined(family.name, values.get(key), sample)
    for family in found.values():
        family.samples = []
    for (name, _, _), sample in values.items():
        found[name].samples.append(sample)
    registry = CollectorRegistry()
    registry.register(_Page(found.values()))
    return generate_latest(registry)


def worker_count_registry(workers: Callable[[], float]) -> CollectorRegistry:
    """The parent's own metric: the number of connected workers."""
    registry = CollectorRegistry()
    live = Gauge("pdserve_proxy_workers", "Processes that serve clients", registry=registry)
    live.set_function(workers)
    return registry


def _combined(family: str, before: Sample | None, sample: Sample) -> Sample:
    if before is None:
        return sample
    combine: Combine = operator.add
    if family.endswith(CREATED):
        combine = min
    elif family in SHARED_VIEWS:
        combine = max
    return before._replace(value=combine(before.value, sample.value))


@dataclass(frozen=True, slots=True, eq=False)
class _Page(Collector):
    families: Iterable[Metric]

    def collect(self) -> Iterator[Metric]:
        yield from self.families


@dataclass(slots=True)
class MetricsPages:
    """The last page of each worker, and one page with the totals of departed workers."""

    _last: dict[int, bytes] = field(default_factory=dict)
    _departed: bytes = b""

    def update(self, worker: int, page: bytes) -> None:
        """Keep the worker's current page."""
        self._last[worker] = page

    def last(self, worker: int) -> bytes | None:
        """The worker's last page, for when it does not answer."""
        return self._last.get(worker)

    def depart(self, worker: int) -> None:
        """The worker has ended: add its counters to those of departed workers."""
        if page := self._last.pop(worker, None):
            self._departed = merge_metrics([self._departed, page], cumulative_only=True)

    @property
    def departed(self) -> bytes:
        """The page of all departed workers."""
        return self._departed
