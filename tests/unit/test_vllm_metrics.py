"""What routers for vLLM's nodes read of ours."""

from prometheus_client import CollectorRegistry, generate_latest

from api.generator import PromptEvent, TokenEvent
from engine.api import EngineLoad
from engine.request import FinishReason, RequestId
from kv_transfer.layout import KvLayout
from node.ipc import EngineOutputs
from node.loop import LegEvent
from node.metrics import NodeMetrics
from node.vllm_metrics import VllmMetrics

LABELS = 'engine="0",model_name="m"'
CACHE = (
    'vllm:cache_config_info{block_size="16",cache_dtype="bfloat16",enable_prefix_caching="True",'
    'engine="0",model_name="m",num_gpu_blocks="40"} 1.0'
)


def page(*outputs: EngineOutputs) -> list[str]:
    metrics = NodeMetrics()
    layout = KvLayout("bfloat16", 16, 1, (64,))
    metrics.registry.register(VllmMetrics(metrics, "m", layout, prefix_cache=True))
    for one in outputs:
        metrics.record(one)
    lines = generate_latest(metrics.registry).decode().splitlines()
    return [line for line in lines if line.startswith("vllm:")]


def test_they_are_the_nodes_own_numbers() -> None:
    rid = RequestId("r")
    events: list[LegEvent] = [
        (rid, PromptEvent(32)),
        (rid, TokenEvent((7, 8))),
        (rid, TokenEvent((9,), FinishReason.STOP)),
    ]
    load = EngineLoad(3, 2, 30, 40, preemptions=5, prompt_tokens=100)
    assert page(EngineOutputs(events, load)) == [
        f"vllm:num_requests_running{{{LABELS}}} 2.0",
        f"vllm:num_requests_waiting{{{LABELS}}} 3.0",
        f"vllm:kv_cache_usage_perc{{{LABELS}}} 0.25",
        f"vllm:prompt_tokens_total{{{LABELS}}} 132.0",
        f"vllm:generation_tokens_total{{{LABELS}}} 3.0",
        f"vllm:num_preemptions_total{{{LABELS}}} 5.0",
        'vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 1.0',
        'vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 0.0',
        CACHE,
    ]


def test_before_the_first_report_nothing_is_used() -> None:
    assert f"vllm:kv_cache_usage_perc{{{LABELS}}} 0.0" in page()


def test_adapters_count_as_running_since_none_has_to_be_loaded() -> None:
    registry = CollectorRegistry()
    layout, names = KvLayout("bfloat16", 16, 1, (64,)), ("law", "sql")
    registry.register(VllmMetrics(NodeMetrics(), "m", layout, True, names, lambda: 7.0))
    told = (
        'vllm:lora_requests_info{max_lora="2",running_lora_adapters="law,sql",'
        'waiting_lora_adapters=""} 7.0'
    )
    assert told in generate_latest(registry).decode().splitlines()
