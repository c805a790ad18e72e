"""What spans say of a request: the names of vLLM's spans, and of OpenTelemetry's conventions.

https://opentelemetry.io/docs/specs/semconv/gen-ai/; vLLM's are older than these, and dashboards
know them. No text of prompts or answers is among them. Pure.
"""

from collections.abc import Iterator, Mapping

from proxy.timeline.exchange import Exchange
from proxy.timeline.marks import Staged
from proxy.timeline.story import Story

Value = str | int | float | tuple[str, ...]
OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/inference/v1/generate": "text_completion",
    "/v1/embeddings": "embeddings",
}


def request_attributes(exchange: Exchange, model: str) -> Mapping[str, Value]:
    """Of the whole request; a prompt counts once for each of its choices."""
    found: dict[str, Value] = {"http.request.method": "POST", "url.path": exchange.endpoint}
    if exchange.status is not None:
        found["http.response.status_code"] = exchange.status
    if operation := OPERATIONS.get(exchange.endpoint):
        found["gen_ai.operation.name"] = operation
    if exchange.stories:
        found["gen_ai.request.id"] = exchange.request_id
        named = exchange.stories[0].request.model
        found["gen_ai.response.model"] = (named and named[0]) or model
        found.update(_asked(exchange.stories[0], len(exchange.stories)))
        found.update(_used(exchange))
        found.update(_latencies(exchange))
    return found


def stage_attributes(stage: Staged) -> Mapping[str, Value]:
    """Of what one node did."""
    found: dict[str, Value] = {"pdserve.node": stage.node}
    if stage.num_bytes:
        found["pdserve.bytes"] = stage.num_bytes
        if stage.seconds:
            found["pdserve.bytes_per_second"] = stage.num_bytes / stage.seconds
    return found


def _asked(story: Story, choices: int) -> Iterator[tuple[str, Value]]:
    sampling = story.request.sampling
    yield "gen_ai.request.n", choices
    yield "gen_ai.request.max_tokens", sampling.max_tokens
    yield "gen_ai.request.temperature", sampling.temperature
    yield "gen_ai.request.top_p", sampling.top_p


def _used(exchange: Exchange) -> Iterator[tuple[str, Value]]:
    stories = exchange.stories
    given = sum(len(story.request.prompt) for story in stories)
    said = sum(story.output_tokens for story in stories)
    yield "gen_ai.usage.prompt_tokens", given
    yield "gen_ai.usage.completion_tokens", said
    yield "gen_ai.usage.input_tokens", given
    yield "gen_ai.usage.output_tokens", said
    cached = sum(story.cached_tokens for story in stories)
    yield "gen_ai.usage.cache_read.input_tokens", cached
    yield "gen_ai.response.finish_reasons", tuple(story.ending for story in stories)
    yield "pdserve.tries", sum(story.tries for story in stories)


def _latencies(exchange: Exchange) -> Iterator[tuple[str, Value]]:
    """Seconds; of several choices the longest, but the first of all first tokens."""
    stories = exchange.stories
    firsts = [story.first_at for story in stories if story.first_at is not None]
    if firsts:
        yield "gen_ai.latency.time_to_first_token", min(firsts) - exchange.received
    if exchange.ended is not None:
        yield "gen_ai.latency.e2e", exchange.ended - exchange.received
    for name, stage in (
        ("gen_ai.latency.time_in_queue", "queue"),
        ("gen_ai.latency.time_in_model_prefill", "prefill"),
        ("gen_ai.latency.time_in_model_decode", "decode"),
    ):
        times = [story.stages[stage] for story in stories if stage in story.stages]
        if times:
            yield name, max(times)
