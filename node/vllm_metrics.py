"""Some of a node's metrics again, under vLLM's names.

Routers that choose among vLLM's nodes read the gauges: llm-d's and others of the Gateway API's
inference extension, and smg. All but one have the labels `model_name` and `engine`.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kv_transfer.layout import KvLayout
from node.metrics import NodeMetrics

PREFIX, ENGINE = "vllm:", "0"
REASONS = ("stop", "length")


@dataclass(frozen=True, slots=True, eq=False)
class VllmMetrics(Collector):
    """Read when Prometheus scrapes; `model` is the first name of the model."""

    metrics: NodeMetrics
    model: str
    layout: KvLayout
    prefix_cache: bool
    adapters: Sequence[str] = ()
    clock: Callable[[], float] = time.time

    def collect(self) -> Iterator[Metric]:
        """Gauges, counters, and what the KV cache is."""
        load, metrics = self.metrics.load.load, self.metrics
        used = load.total_blocks - load.free_blocks
        share, prompts = used / max(1, load.total_blocks), total(metrics.cached)
        yield self._gauge("num_requests_running", "Requests that run.", load.running)
        yield self._gauge("num_requests_waiting", "Requests that wait.", load.waiting)
        yield self._gauge("kv_cache_usage_perc", "KV blocks held by requests, of 1.", share)
        yield self._counter("prompt_tokens", "Prompt tokens.", load.prompt_tokens + prompts)
        yield self._counter("generation_tokens", "Generated tokens.", total(metrics.generated))
        yield self._counter("num_preemptions", "Preempted requests.", load.preemptions)
        yield self._endings()
        yield self._cache_config(load.total_blocks)
        if self.adapters:
            yield self._adapters()

    def _gauge(self, name: str, meaning: str, value: float) -> Metric:
        family = GaugeMetricFamily(PREFIX + name, meaning, labels=["model_name", "engine"])
        family.add_metric([self.model, ENGINE], value)
        return family

    def _counter(self, name: str, meaning: str, value: float) -> Metric:
        family = CounterMetricFamily(PREFIX + name, meaning, labels=["model_name", "engine"])
        family.add_metric([self.model, ENGINE], value)
        return family

    def _endings(self) -> Metric:
        labels = ["model_name", "engine", "finished_reason"]
        family = CounterMetricFamily(
            PREFIX + "request_success", "Answers that ended.", labels=labels
        )
        for reason in REASONS:
            ended = total(self.metrics.finished, reason)
            family.add_metric([self.model, ENGINE, reason], ended)
        return family

    def _cache_config(self, blocks: int) -> Metric:
        said = {
            "model_name": self.model,
            "engine": ENGINE,
            "block_size": str(self.layout.block_size),
            "num_gpu_blocks": str(blocks),
            "cache_dtype": self.layout.dtype,
            "enable_prefix_caching": str(self.prefix_cache),
        }
        family = GaugeMetricFamily(
            PREFIX + "cache_config_info", "The KV cache.", labels=[*said]
        )
        family.add_metric([*said.values()], 1)
        return family

    def _adapters(self) -> Metric:
        """Of several samples routers take the latest, so its value is the time. Adapters are
        loaded with the model: a request of any of them runs without waiting for it.
        """
        said = {
            "max_lora": str(len(self.adapters)),
            "running_lora_adapters": ",".join(self.adapters),
            "waiting_lora_adapters": "",
        }
        family = GaugeMetricFamily(
            PREFIX + "lora_requests_info", "The LoRA adapters.", labels=[*said]
        )
        family.add_metric([*said.values()], self.clock())
        return family


def total(counter: Counter, *labels: str) -> float:
    """The value of a counter; with labels, of those that have just these values, or 0."""
    return sum(
        sample.value
        for metric in counter.collect()
        for sample in metric.samples
        if sample.name.endswith("_total") and tuple(sample.labels.values()) == labels
    )
