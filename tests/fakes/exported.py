"""What a proxy and a node export once everything that they count has happened to them.

A label of which there is no sample yet is on no page, so each counter is made to count here.
"""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry

from api.door.limiter import ConnectionLimiter
from api.generator import Event, FailedEvent, PooledEvent, PromptEvent, StageEvent, TokenEvent
from discovery.node import Node
from discovery.registration import Registration, Role
from discovery.registry import Registry
from engine.api import EngineLoad, TierLoad
from engine.request import FinishReason, Request, RequestId
from kv_transfer.layout import KvLayout
from node.ipc import EngineOutputs
from node.metrics import NodeMetrics
from node.vllm_metrics import VllmMetrics
from proxy.admission.gate import AdmissionGate
from proxy.errors import NodeFailed
from proxy.health.health import Health
from proxy.observing.admission_metrics import AdmissionMetrics, ConnectionMetrics
from proxy.observing.metrics import ProxyMetrics
from proxy.timeline.choice import ChoiceTimeline
from proxy.workers.metrics_pages import worker_count_registry

Labels = frozenset[str]


def exported_by_nodes() -> Mapping[str, Labels]:
    """The labels of each sample's name."""
    metrics, rid = NodeMetrics(), RequestId("r")
    events: list[Event | PooledEvent] = [
        PromptEvent(16, fetched_tokens=8),
        StageEvent("transfer", 0.5, 4096),
        TokenEvent((8,), FinishReason.LENGTH),
        PooledEvent(b"", 0),
        FailedEvent("x", retryable=True),
    ]
    load = EngineLoad(1, 2, 3, 10, tiers=(TierLoad("cpu", 4096, 1, 2, 3, 4),))
    metrics.record(EngineOutputs([(rid, event) for event in events], load))
    metrics.refused.labels("unsigned").inc()
    return dict(_samples(metrics.registry))


def exported_by_proxies() -> Mapping[str, Labels]:
    """The same of a proxy, with all of its workers' metrics."""
    registry, gate, limiter = Registry(), AdmissionGate(), ConnectionLimiter()
    nodes = [Registration(role, f"h:{role}", f"h:{role}", role.name, "m") for role in Role]
    for one in nodes:
        registry.apply(one, now=0.0)
    health = Health(registry)
    metrics = ProxyMetrics(registry, health)
    metrics.all.register(AdmissionMetrics(gate))
    metrics.all.register(ConnectionMetrics(limiter))
    failure = NodeFailed(nodes[0].node_id or "", "it broke off")
    health.record_failure(failure, begun=0.0, now=1.0)
    for counter in (registry.refused, gate.admission.refused, limiter.refused):
        counter["some reason"] += 1
    health.retries[failure.cause] += 1
    metrics.record_answer("/v1/completions", 200)
    metrics.record_choice(_answered(*(Node(one, 0.0) for one in nodes)))
    workers = worker_count_registry(lambda: 2)
    return {**dict(_samples(metrics.all)), **dict(_samples(workers))}


def _answered(prefill: Node, decode: Node) -> ChoiceTimeline:
    timeline = ChoiceTimeline(Request(RequestId("r"), (1, 2, 3)), 0.0)
    timeline.record_plan(prefill, decode, 0.0, (0.5, 1.0))
    timeline.record_event(prefill, StageEvent("prefill", 0.25), 0.1)
    timeline.record_tokens(TokenEvent((8, 9), FinishReason.STOP), 0.9)
    timeline.output_tokens, timeline.ended_at = 2, 1.0
    return timeline


def _samples(registry: CollectorRegistry) -> Iterator[tuple[str, Labels]]:
    for family in registry.collect():
        yield from ((one.name, frozenset(one.labels)) for one in family.samples)


def under_vllms_names() -> CollectorRegistry:
    """What a node exports under vLLM's names, and nothing else."""
    layout, registry = KvLayout("bfloat16", 16, 1, (64,)), CollectorRegistry()
    registry.register(
        VllmMetrics(NodeMetrics(), "m", layout, prefix_cache=True, adapters=["a"])
    )
    return registry
