"""What a node counts, as Prometheus metrics; docs/reference/metrics.md explains each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from api.generator import Event, FailedEvent, PooledEvent, PromptEvent, StageEvent, TokenEvent
from discovery.signature import FORGED, REPLAYED, STALE, UNSIGNED
from engine.api import EngineLoad, TierLoad
from kv_transfer import errors
from kv_transfer.side_channel.introduction import CROWDED, MALFORMED, SIGNED_HERE
from node.ipc import NO_LOAD, EngineOutputs
from node.signed_introductions import ELSEWHERE

LOAD_FAILURES = (
    *(errors.PeerUnreachable, errors.LeaseExpired, errors.OfferWithdrawn),
    *(errors.LayoutMismatch, errors.CorruptKv, errors.TicketInUse),
    errors.TransferCancelled,
)
NO_FAILURES = {error.kind: 0 for error in LOAD_FAILURES}
NO_REFUSALS = dict.fromkeys(
    (*(UNSIGNED, FORGED, STALE, REPLAYED, ELSEWHERE), SIGNED_HERE, CROWDED, MALFORMED), 0
)
"""Exported from the start: Prometheus takes no notice of a counter that begins with 1."""


@dataclass(slots=True, eq=False)
class LoadCollector(Collector):
    """The engine's last reported load, exported when Prometheus scrapes."""

    load: EngineLoad = NO_LOAD
    load_failures: Mapping[str, int] = field(default_factory=dict)
    sweep_late_s: float = 0.0
    refused_connections: Mapping[str, int] = field(default_factory=dict)

    def collect(self) -> Iterator[Metric]:
        """One metric for each number."""
        load = self.load
        used = load.total_blocks - load.free_blocks
        for name, meaning, value in (
            (
                "pdserve_requests_waiting",
                "Requests that wait for a seat or for blocks.",
                load.waiting,
            ),
            ("pdserve_requests_running", "Requests that have a seat and blocks.", load.running),
            ("pdserve_kv_blocks_used", "KV blocks held by requests.", used),
            ("pdserve_kv_blocks_total", "All KV blocks.", load.total_blocks),
            (
                "pdserve_kv_sweep_late_seconds",
                "How late the transfer thread expires leases.",
                self.sweep_late_s,
            ),
        ):
            yield GaugeMetricFamily(name, meaning, value)
        for name, meaning, value in (
            ("preemptions", "Requests preempted, to be computed again.", load.preemptions),
            ("prompt_tokens_computed", "Prompt tokens computed here.", load.prompt_tokens),
            ("spec_decode_num_drafts", "Speculative drafts.", load.drafts),
            ("spec_decode_num_draft_tokens", "Draft tokens.", load.draft_tokens),
            ("spec_decode_num_accepted_tokens", "Draft tokens accepted.", load.accepted_tokens),
        ):
            yield CounterMetricFamily(f"pdserve_{name}", meaning, value)
        meaning = "KV loads that failed: recomputed, or the leg failed."
        failures = {**NO_FAILURES, **self.load_failures}
        yield _by_reason("kv_load_failures", meaning, failures)
        meaning = "Connections to the KV port that were refused or cut."
        refused = {**NO_REFUSALS, **self.refused_connections}
        yield _by_reason("kv_connections_refused", meaning, refused)
        yield from _of_tiers(load.tiers)


def _by_reason(name: str, meaning: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(f"pdserve_{name}", meaning, labels=["reason"])
    for reason, count in counts.items():
        family.add_metric([reason], count)
    return family


def _of_tiers(tiers: Sequence[TierLoad]) -> Iterator[Metric]:
    """One sample for each tier below KV memory; empty if there are none."""
    for kind, name, meaning, values in (
        (GaugeMetricFamily, "on", "1 until the tier fails.", [one.on for one in tiers]),
        (GaugeMetricFamily, "blocks", "KV blocks in the tier.", [one.blocks for one in tiers]),
        (CounterMetricFamily, "stored", "Blocks stored.", [one.stored for one in tiers]),
        (CounterMetricFamily, "loaded", "Blocks loaded.", [one.loaded for one in tiers]),
        (
            CounterMetricFamily,
            "missed",
            "Lookups without a block.",
            [one.misses for one in tiers],
        ),
        (
            CounterMetricFamily,
            "stored_bytes",
            "Bytes stored.",
            [one.stored * one.block_bytes for one in tiers],
        ),
        (
            CounterMetricFamily,
            "loaded_bytes",
            "Bytes loaded.",
            [one.loaded * one.block_bytes for one in tiers],
        ),
    ):
        family = kind(f"pdserve_kv_tier_{name}", meaning, labels=["tier"])
        for tier, value in zip(tiers, values, strict=True):
            family.add_metric([tier.tier], value)
        yield family


@dataclass(slots=True)
class NodeMetrics:
    """Counts the engine's events; `record` takes each EngineOutputs."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    load: LoadCollector = field(default_factory=LoadCollector)
    cached: Counter = field(init=False)
    fetched: Counter = field(init=False)
    generated: Counter = field(init=False)
    finished: Counter = field(init=False)
    failed: Counter = field(init=False)
    seconds: Counter = field(init=False)
    moved: Counter = field(init=False)
    refused: Counter = field(init=False)

    def __post_init__(self) -> None:
        """Register everything once."""
        self.registry.register(self.load)
        self.cached = self._counter(
            "prompt_tokens_cached", "Prompt tokens found in the prefix cache."
        )
        self.fetched = self._counter(
            "prompt_tokens_fetched", "Prompt tokens fetched from another node's prefix cache."
        )
        self.generated = self._counter(
            "generation_tokens", "Tokens sampled here, or received with KV."
        )
        self.finished = self._counter("answers_finished", "Answers that ended here.", "reason")
        self.failed = self._counter("legs_failed", "Legs that ended before their answer.")
        self.seconds = self._counter("stage_seconds", "Time spent by requests.", "stage")
        self.moved = self._counter("kv_transfer_bytes", "Bytes of KV pulled from other nodes.")
        meaning = "Calls refused: not signed with the cluster's key."
        self.refused = self._counter("calls_refused", meaning, "reason")

    def record(self, outputs: EngineOutputs) -> None:
        """Update the load and count the events."""
        self.load.load, self.load.load_failures = outputs.load, outputs.load_failures
        self.load.sweep_late_s = outputs.sweep_late_s
        self.load.refused_connections = outputs.refused_connections
        for _, event in outputs.events:
            self._count(event)

    def _count(self, event: Event | PooledEvent) -> None:
        match event:
            case TokenEvent(tokens=tokens, finish=finish):
                self.generated.inc(len(tokens))
                if finish:
                    self.finished.labels(finish).inc()
            case PooledEvent():
                self.finished.labels("pooled").inc()
            case PromptEvent(cached_tokens=cached, fetched_tokens=fetched):
                self.cached.inc(cached)
                self.fetched.inc(fetched)
            case StageEvent(stage=stage, seconds=seconds, num_bytes=num_bytes):
                self.seconds.labels(stage).inc(seconds)
                self.moved.inc(num_bytes)
            case FailedEvent():
                self.failed.inc()

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"pdserve_{name}", meaning, labels, registry=self.registry)
