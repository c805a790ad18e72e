"""What a node's metrics count of each event, and what they do not."""

from api.generator import (
    EndEvent,
    Event,
    FailedEvent,
    PooledEvent,
    PromptEvent,
    StageEvent,
    TicketEvent,
    TokenEvent,
)
from engine.api import EngineLoad
from engine.request import FinishReason, RequestId
from kv_transfer.ticket import KvTicket
from node.ipc import EngineOutputs
from node.metrics import LOAD_FAILURES, NO_REFUSALS, NodeMetrics

TICKET = TicketEvent(KvTicket("r", "e", "h", 1, "fake"))


def counted(*events: Event | PooledEvent, **failures: int) -> dict[str, float]:
    """Every counter of the engine's events that is not 0."""
    metrics = NodeMetrics()
    load = EngineLoad(0, 0, 0, 0)
    news = [(RequestId("r"), event) for event in events]
    metrics.record(EngineOutputs(news, load, load_failures=failures))
    return {
        "/".join([sample.name.removeprefix("pdserve_"), *sample.labels.values()]): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.value and not sample.name.endswith("_created")
    }


def test_an_answer_is_finished_once_with_its_last_tokens() -> None:
    assert counted(TokenEvent((1, 2)), TokenEvent((3,))) == {"generation_tokens_total": 3}
    assert counted(TokenEvent((1,)), TokenEvent((), FinishReason.STOP)) == {
        "generation_tokens_total": 1,
        "answers_finished_total/stop": 1,
    }
    assert counted(PooledEvent(b"", 0)) == {"answers_finished_total/pooled": 1}


def test_prompts_stages_and_failures_are_counted_apart() -> None:
    prompt, stage = PromptEvent(90, fetched_tokens=68), StageEvent("transfer", 0.5, 1000)
    assert counted(prompt, stage, stage, FailedEvent("x", retryable=True)) == {
        "prompt_tokens_cached_total": 90,
        "prompt_tokens_fetched_total": 68,
        "stage_seconds_total/transfer": 1.0,
        "kv_transfer_bytes_total": 2000,
        "legs_failed_total": 1,
    }
    assert counted(TICKET, EndEvent()) == {}


def test_each_kind_of_failed_load_is_there_from_the_start() -> None:
    metrics, name = NodeMetrics(), "pdserve_kv_load_failures_total"
    for error in LOAD_FAILURES:
        assert metrics.registry.get_sample_value(name, {"reason": error.kind}) == 0
    assert counted(corrupt=2) == {"kv_load_failures_total/corrupt": 2}


def test_each_kind_of_refused_connection_is_there_from_the_start() -> None:
    metrics, name = NodeMetrics(), "pdserve_kv_connections_refused_total"
    for count in (0, 3):
        refused = {"forged": count} if count else {}
        load = EngineLoad(0, 0, 0, 0)
        metrics.record(EngineOutputs([], load, refused_connections=refused))
        for reason in NO_REFUSALS:
            told = metrics.registry.get_sample_value(name, {"reason": reason})
            assert told == (count if reason == "forged" else 0)
