"""A client of /v1/messages that takes no event on trust: what they add up to, as Anthropic's
own clients add them up, has to be what the answer is that is not streamed.
"""

from typing import Any

import msgspec

from tests.fakes.http import Client, Json, Said
from tests.fakes.text import TEMPLATE, byte_level

PATH = "/v1/messages"
COUNT = f"{PATH}/count_tokens"
CODEC = byte_level(TEMPLATE + "<tool_call>")
PARIS = '{"city": "Paris"}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {PARIS}}}\n</tool_call>'
CLOCK = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
WEATHER: Json = {
    "name": "weather",
    "description": "of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    "cache_control": {"type": "ephemeral"},
}
TOOLS: list[Json] = [WEATHER, {"name": "clock", "type": "custom", "input_schema": {}}]
USAGE = {
    *("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"),
    *("output_tokens", "output_tokens_details", "service_tier"),
}
REASONS = {
    *("end_turn", "max_tokens", "stop_sequence", "tool_use"),
    "model_context_window_exceeded",
}
EMPTY: dict[str, Json] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
    "tool_use": {"type": "tool_use", "input": {}},
}
DELTAS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("thinking", "signature"),
    "input_json_delta": ("tool_use", "partial_json"),
}


async def ask(door: Client, *, stream: bool = False, **fields: object) -> Said:
    hi = [{"role": "user", "content": "hi"}]
    asked: Json = {"messages": hi, "max_tokens": 100, "stream": stream, **fields}
    return await door.post(PATH, **asked)


async def heard(door: Client, *, stream: bool = False, **fields: object) -> Json:
    """The message, whichever way it came."""
    said = await ask(door, stream=stream, **fields)
    assert said.status == 200, said.body
    return message_of(events_of(said.body)) if stream else checked(said.json)


def events_of(body: str) -> list[Json]:
    """Each with its name; comments are passed over."""
    *frames, rest = body.split("\n\n")
    assert rest == ""
    return [_event(frame) for frame in frames if not frame.startswith(":")]


def _event(frame: str) -> Json:
    name, data = frame.split("\n")
    event = msgspec.json.decode(data.removeprefix("data: "))
    assert name == f"event: {event['type']}"
    return event


def message_of(events: list[Json]) -> Json:
    """What a stream adds up to that came to its end."""
    start, ping, *blocks, delta, stop = events
    assert (ping, stop) == ({"type": "ping"}, {"type": "message_stop"})
    message = started(start)
    message["content"] = blocks_of(blocks, over=True)
    assert set(delta) - {"pdserve"} == {"type", "delta", "usage"}
    assert delta["type"] == "message_delta"
    assert set(delta["delta"]) == {"stop_reason", "stop_sequence"}
    for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
        assert message["usage"][name] == delta["usage"][name]
    told = {name: delta[name] for name in ("pdserve",) if name in delta}
    return checked({**message, **delta["delta"], "usage": delta["usage"], **told})


def started(event: Json) -> Json:
    """The message that a stream begins with."""
    assert set(event) == {"type", "message"}
    assert event["type"] == "message_start"
    message: Json = event["message"]
    assert message["content"] == []
    assert (message["stop_reason"], message["stop_sequence"]) == (None, None)
    assert message["usage"]["output_tokens"] == 0
    return message


def failure_of(body: str) -> tuple[list[Json], Json]:
    """The blocks of a stream that broke off, and its last event."""
    start, ping, *blocks, error = events_of(body)
    started(start)
    assert ping == {"type": "ping"}
    return blocks_of(blocks, over=False), refused(error)


def refused(said: Json) -> Json:
    """What an error says, in the form of Anthropic's."""
    assert set(said) == {"type", "error", "request_id"}
    assert said["type"] == "error"
    assert set(said["error"]) - {"details"} == {"type", "message"}
    return said["error"]


def checked(message: Json) -> Json:
    """A whole message, which has what Anthropic's clients look for."""
    assert (message["type"], message["role"]) == ("message", "assistant")
    assert message["stop_reason"] in REASONS
    assert (message["stop_sequence"] is None) is (message["stop_reason"] != "stop_sequence")
    usage = message["usage"]
    assert set(usage) <= USAGE
    assert all(usage[name] >= 0 for name in usage if name.endswith("_tokens"))
    for block in message["content"]:
        assert set(block) == {*EMPTY[block["type"]]} | (
            {"id", "name"} if block["type"] == "tool_use" else set()
        )
        assert block.get("signature", "signed")
        assert isinstance(block.get("input", {}), dict)
    return message


def blocks_of(events: list[Json], *, over: bool) -> list[Json]:
    """One after another; the last may be open where the stream is not `over`."""
    blocks = list[Json]()
    inputs = dict[int, str]()
    open_: int | None = None
    for event in events:
        if event["type"] == "content_block_start":
            assert open_ is None
            assert event["index"] == len(blocks)
            block: Json = event["content_block"]
            names = {name: block[name] for name in ("id", "name") if name in block}
            assert block == {**EMPTY[block["type"]], **names}
            blocks.append(block)
            open_ = event["index"]
            continue
        assert event["index"] == open_
        if event["type"] == "content_block_stop":
            if open_ in inputs:
                blocks[open_]["input"] = _object(inputs[open_])
            open_ = None
        else:
            _grow(blocks[-1], event, inputs)
    assert open_ is None or not over
    return blocks


def _grow(block: Json, event: Json, inputs: dict[int, str]) -> None:
    assert set(event) == {"type", "index", "delta"}
    assert event["type"] == "content_block_delta"
    kind, name = DELTAS[event["delta"]["type"]]
    assert set(event["delta"]) == {"type", name}
    assert block["type"] == kind
    more = event["delta"][name]
    assert more or name == "thinking"
    if kind == "tool_use":
        inputs[event["index"]] = inputs.get(event["index"], "") + more
    elif name == "signature":
        assert block["signature"] == ""
        block["signature"] = more
    else:
        assert not block.get("signature")
        block[name] += more


def _object(text: str) -> Json:
    """As it would be told at once: what was cut is none."""
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def summary(message: Json) -> list[tuple[Any, ...]]:
    """Of each block what it is, and what it says."""
    return [_said(block) for block in message["content"]]


def _said(block: Json) -> tuple[Any, ...]:
    if block["type"] == "tool_use":
        return "tool_use", block["name"], block["input"]
    return block["type"], block.get("text", block.get("thinking"))
