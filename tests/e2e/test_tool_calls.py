"""Calls of tools from a model of random weights, as OpenAI's client reads them: two nodes say
what one says, and a grammar makes every call one that can be made."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError

from tests.e2e.cluster import MODEL, running

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Oslo"]}, "days": {"enum": [1, 2, 30]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
FREE = {
    "type": "object",
    "properties": {"text": {"type": "string", "maxLength": 6}},
    "required": ["text"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": True}},
    {"type": "function", "function": {"name": "say", "parameters": FREE, "strict": True}},
]
NAMED = {"type": "function", "function": {"name": "weather"}}
MUST = {"tool_choice": "required", "parallel_tool_calls": False}
TAGGED = r'[a-f]{3} <tool_call>\{"name": "say", "arguments": \{"n": [0-9]{3}\}\}</tool_call>'
Calls = list[tuple[str, Any]]


async def calls(client: AsyncOpenAI, **fields: Any) -> tuple[str | None, Calls, str]:  # noqa: ANN401
    """The content, the calls, and how the answer ended: the same, whole and streamed."""
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "What is it like in Paris?"}],
        "tools": TOOLS,
        "temperature": 0,
        "max_tokens": 200,
        **fields,
    }
    whole = (await client.chat.completions.create(**asked)).choices[0]
    async with client.chat.completions.stream(**asked) as events:
        async for _ in events:
            pass
        streamed = (await events.get_final_completion()).choices[0]
    assert streamed.finish_reason == whole.finish_reason
    assert (streamed.message.content or None) == whole.message.content
    assert read(streamed.message.tool_calls) == read(whole.message.tool_calls)
    return whole.message.content, read(whole.message.tool_calls), whole.finish_reason


def read(given: Sequence[Any] | None) -> Calls:
    return [(one.function.name, json.loads(one.function.arguments)) for one in given or ()]


async def test_calls_are_as_their_schemas_say_at_a_proxy_and_at_a_node(tiny: Path) -> None:
    async with running(tiny, tool_call_parser="hermes") as cluster:
        [alone] = [node for node in await cluster.nodes() if node["role"] == "decode"]
        heard = []
        for door in (cluster.url, f"http://{alone['http_address']}"):
            async with AsyncOpenAI(base_url=f"{door}/v1", api_key="none") as client:
                named = await calls(client, tool_choice=NAMED)
                must = await calls(client, **MUST)
                regex = {"structured_outputs": {"regex": TAGGED}}
                tagged = await calls(client, extra_body=regex)
                heard.append((named, must, tagged))
                with pytest.raises(BadRequestError, match="tools"):
                    await calls(client, tools=[], tool_choice="required")
        named, must, tagged = heard[0]
        assert heard[1] == heard[0]
        assert named[1][0][0] == "weather"
        assert named[1][0][1].keys() == CITY["properties"].keys()  # type: ignore[attr-defined]
        assert named[2] == "stop"
        assert (len(must[1]), must[2]) == (1, "tool_calls")
        assert (tagged[1][0][0], tagged[2]) == ("say", "tool_calls")
        await cluster.blocks_come_back()
