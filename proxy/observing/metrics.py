"""The proxy's Prometheus metrics. Updated once per request, never per token."""

import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from discovery.registration import Role
from discovery.registry import Registry
from proxy.health.health import Health
from proxy.observing.failure_metrics import FailureMetrics, RefusedRegistrations
from proxy.observing.node_states import NodeStates
from proxy.timeline.choice import FAILED, ChoiceTimeline

PREFIX = "pdserve_proxy_"
Child = TypeVar("Child", Counter, Histogram)
Label = TypeVar("Label", bound=Hashable)
FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
DURATION_S = (
    *(0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30),
    *(40, 50, 60, 120, 240, 480, 960, 1920, 7680),
)
PER_TOKEN_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2),
    *(0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
PULL_RATES = (1e6, 1e7, 3e7, 1e8, 3e8, 1e9, 3e9, 1e10, 2e10, 5e10, 1e11)
ESTIMATE_RATIO = (0.25, 0.5, 0.67, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.25, 1.5, 2, 4, 10)
STAGE_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)


class _Labelled(dict[Label, Child]):
    """A metric by its labels; each child is looked up once, not for each request."""

    def __init__(self, labels: Callable[[Label], Child]) -> None:
        super().__init__()
        self._labels: Callable[[Label], Child] = labels

    def __missing__(self, label: Label) -> Child:
        child = self[label] = self._labels(label)
        return child


class ProxyMetrics:
    """One proxy's metrics, in a registry of their own."""

    def __init__(self, registry: Registry, health: Health) -> None:
        self.requests_in_flight = 0
        self.all = CollectorRegistry()
        self.all.register(_Cluster(registry, self))
        self.all.register(NodeStates(health, PREFIX))
        self.all.register(FailureMetrics(health, PREFIX))
        self.all.register(RefusedRegistrations(registry, PREFIX))
        requests = self._counter("requests", "HTTP responses", "endpoint", "status")
        self._requests = _Labelled[tuple[str, int], Counter](lambda of: requests.labels(*of))
        self._answers = _Labelled(
            self._counter("answers", "Choices by how they ended", "finish").labels
        )
        self._answers[FAILED].inc(0)  # exported before the first one fails
        self._tokens = _Labelled(
            self._counter("tokens", "Tokens of requests, by kind", "kind").labels
        )
        self._moves = self._counter("moves", "Hand-overs continued on another decode node")
        self._first = self._histogram("time_to_first_token_seconds", FIRST_TOKEN_S)
        self._duration = self._histogram("request_duration_seconds", DURATION_S)
        self._estimates = _Labelled(
            self._histogram("estimate_ratio", ESTIMATE_RATIO, "of").labels
        )
        self._stages = _Labelled(self._histogram("stage_seconds", STAGE_S, "stage").labels)
        self._per_token = self._histogram("time_per_output_token_seconds", PER_TOKEN_S)
        self._pulled = self._counter("kv_transfer_bytes", "KV pulled for choices")
        self._pull_rate = self._histogram("kv_transfer_bytes_per_second", PULL_RATES)

    def record_answer(self, endpoint: str, status: int) -> None:
        """Count one HTTP answer."""
        self._requests[endpoint, status].inc()

    def record_choice(self, timeline: ChoiceTimeline) -> None:
        """Count one choice that has ended."""
        self._answers[timeline.ending].inc()
        self._tokens["prompt"].inc(len(timeline.request.prompt))
        self._tokens["cached"].inc(timeline.cached_tokens)
        self._tokens["fetched"].inc(timeline.fetched_tokens)
        self._tokens["output"].inc(timeline.output_tokens)
        self._moves.inc(timeline.moves)
        self._duration.observe(timeline.duration_s)
        if timeline.first_token_s is not None:
            self._first.observe(timeline.first_token_s)
        if timeline.per_token_s is not None:
            self._per_token.observe(timeline.per_token_s)
        if timeline.plan_s is not None:
            self._stages["plan"].observe(timeline.plan_s)
        for of, ratio in timeline.prediction_ratios:
            self._estimates[of].observe(ratio)
        for stage, seconds in timeline.stages.items():
            self._stages[stage].observe(seconds)
        for num_bytes, seconds in timeline.kv_transfers:
            self._pulled.inc(num_bytes)
            if seconds:
                self._pull_rate.observe(num_bytes / seconds)

    def record_tokenization(self, seconds: float) -> None:
        """Record the seconds it took to tokenize a request's text."""
        self._stages["tokenize"].observe(seconds)

    def record_pooled(self, count: int, tokens: int, seconds: float, ending: str) -> None:
        """Count the prompts of one pooling call; `ending`: how it went."""
        self._answers[ending].inc(count)
        self._tokens["prompt"].inc(tokens)
        self._duration.observe(seconds)

    def render(self) -> bytes:
        """The metrics page."""
        return generate_latest(self.all)

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(PREFIX + name, help_text, labels, registry=self.all)

    def _histogram(self, name: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        help_text = name.replace("_", " ")
        return Histogram(PREFIX + name, help_text, labels, buckets=buckets, registry=self.all)


@dataclass(frozen=True, slots=True, eq=False)
class _Cluster(Collector):
    """Gauges that are read when Prometheus scrapes."""

    registry: Registry
    metrics: ProxyMetrics
    clock: Callable[[], float] = time.monotonic

    def collect(self) -> Iterator[Metric]:
        open_now = GaugeMetricFamily(PREFIX + "requests_in_flight", "Choices in flight")
        open_now.add_metric([], self.metrics.requests_in_flight)
        yield open_now
        nodes = GaugeMetricFamily(PREFIX + "nodes", "Known nodes", labels=["role"])
        known = [node.role for node in self.registry.all()]
        for role in Role:
            nodes.add_metric([role.name.lower()], known.count(role))
        yield nodes
        yield self._losses()

    def _losses(self) -> Metric:
        """In Unix time, which Prometheus has, too."""
        name, text = (
            PREFIX + "last_node_lost_timestamp_seconds",
            "When a node was lost; 0: never",
        )
        lost, ahead = GaugeMetricFamily(name, text, labels=["role"]), time.time() - self.clock()
        for role in Role:
            at = self.registry.losses.last.get(role)
            lost.add_metric([role.name.lower()], 0.0 if at is None else at + ahead)
        return lost
