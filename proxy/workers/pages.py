"""Metrics of several processes as one page, counters of those that are gone included. Pure.

Counters and histograms are added up. So are gauges, as those of requests; of a gauge in `SAME`
all processes have their own view of the same thing, and the largest counts. What counts from
the start of a process (`_created`) is the earliest.
"""

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

SAME = frozenset({"pdserve_proxy_nodes", "pdserve_proxy_breakers"})
CREATED = "_created"
LASTING = ("counter", "histogram", "summary")
Labels = tuple[tuple[str, str], ...]
Combine = Callable[[float, float], float]


def merged(pages: Iterable[bytes], *, lasting: bool = False) -> bytes:
    """One page of several; `lasting`: only what still counts when its process is gone."""
    found = dict[str, Metric]()
    values = dict[tuple[str, str, Labels], Sample]()
    for page in pages:
        for family in text_string_to_metric_families(page.decode()):
            if lasting and family.type not in LASTING and not family.name.endswith(CREATED):
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


def counting(workers: Callable[[], float]) -> CollectorRegistry:
    """What the parent has to say: how many serve."""
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
    elif family in SAME:
        combine = max
    return before._replace(value=combine(before.value, sample.value))


@dataclass(frozen=True, slots=True, eq=False)
class _Page(Collector):
    families: Iterable[Metric]

    def collect(self) -> Iterator[Metric]:
        yield from self.families


@dataclass(slots=True)
class Pages:
    """The last page of each worker, and what those that are gone have counted."""

    _last: dict[int, bytes] = field(default_factory=dict)
    _gone: bytes = b""

    def keep(self, worker: int, page: bytes) -> None:
        """This is what it counts now."""
        self._last[worker] = page

    def last(self, worker: int) -> bytes | None:
        """What it said last, for when it is silent."""
        return self._last.get(worker)

    def part(self, worker: int) -> None:
        """It is gone, and what it has counted stays."""
        if page := self._last.pop(worker, None):
            self._gone = merged([self._gone, page], lasting=True)

    @property
    def gone(self) -> bytes:
        """A page of all that are gone."""
        return self._gone
