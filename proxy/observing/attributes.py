"""Span attributes of a request: vLLM's names, and OpenTelemetry's GenAI conventions.

https://opentelemetry.io/docs/specs/semconv/gen-ai/; vLLM's names are older, and dashboards use
them. No attribute has text of prompts or answers. Pure.
"""

from collections.abc import Iterator, Mapping

from proxy.timeline.choice import ChoiceTimeline
from proxy.timeline.events import StageEnded
from proxy.timeline.exchange import HttpExchange

Value = str | int | float | tuple[str, ...]
OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/inference/v1/generate": "text_completion",
    "/v1/embeddings": "embeddings",
}


def request_attributes(exchange: HttpExchange, model: str) -> Mapping[str, Value]:
    """Attributes of the whole request; a prompt counts once for each of its choices."""
    found: dict[str, Value] = {"http.request.method": "POST", "url.path": exchange.endpoint}
    if exchange.status is not None:
        found["http.response.status_code"] = exchange.status
    if operation := OPERATIONS.get(exchange.endpoint):
        found["gen_ai.operation.name"] = operation
    if exchange.choices:
        found["gen_ai.request.id"] = exchange.request_id
        asked = exchange.choices[0].request
        named = asked.adapter or (asked.model and asked.model[0])
        found["gen_ai.response.model"] = named or model
        found.update(_asked(exchange.choices[0], len(exchange.choices)))
        found.update(_used(exchange))
        found.update(_latencies(exchange))
    return found


def stage_attributes(stage: StageEnded) -> Mapping[str, Value]:
    """Attributes of a stage at one node."""
    found: dict[str, Value] = {"pdserve.node": stage.node}
    if stage.num_bytes:
        found["pdserve.bytes"] = stage.num_bytes
        if stage.seconds:
            found["pdserve.bytes_per_second"] = stage.num_bytes / stage.seconds
    return found


def _asked(timeline: ChoiceTimeline, choices: int) -> Iterator[tuple[str, Value]]:
    sampling = timeline.request.sampling
    yield "gen_ai.request.n", choices
    yield "gen_ai.request.max_tokens", sampling.max_tokens
    yield "gen_ai.request.temperature", sampling.temperature
    yield "gen_ai.request.top_p", sampling.top_p


def _used(exchange: HttpExchange) -> Iterator[tuple[str, Value]]:
    choices = exchange.choices
    given = sum(len(timeline.request.prompt) for timeline in choices)
    said = sum(timeline.output_tokens for timeline in choices)
    yield "gen_ai.usage.prompt_tokens", given
    yield "gen_ai.usage.completion_tokens", said
    yield "gen_ai.usage.input_tokens", given
    yield "gen_ai.usage.output_tokens", said
    cached = sum(timeline.cached_tokens for timeline in choices)
    yield "gen_ai.usage.cache_read.input_tokens", cached
    yield "gen_ai.response.finish_reasons", tuple(timeline.ending for timeline in choices)
    yield "pdserve.tries", sum(timeline.tries for timeline in choices)


def _latencies(exchange: HttpExchange) -> Iterator[tuple[str, Value]]:
    """Latencies in seconds; the longest of several choices, but the earliest first token."""
    choices = exchange.choices
    firsts = [timeline.first_at for timeline in choices if timeline.first_at is not None]
    if firsts:
        yield "gen_ai.latency.time_to_first_token", min(firsts) - exchange.received
    if exchange.ended is not None:
        yield "gen_ai.latency.e2e", exchange.ended - exchange.received
    for name, stage in (
        ("gen_ai.latency.time_in_queue", "queue"),
        ("gen_ai.latency.time_in_model_prefill", "prefill"),
        ("gen_ai.latency.time_in_model_decode", "decode"),
    ):
        times = [timeline.stages[stage] for timeline in choices if stage in timeline.stages]
        if times:
            yield name, max(times)
