"""Tools as Codex sends them: functions in namespaces, and a search that nobody makes."""

import pytest

from tests.fakes.http import Client
from tests.fakes.responses import CALL, CLOCK, CODEC, TOOLS, heard
from tests.fakes.text import byte_level, saying, served


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_in_a_namespace_is_told_by_its_own_name(stream: bool) -> None:
    """And so Codex knows it again."""
    space = {"type": "namespace", "name": "sky", "description": "above", "tools": TOOLS}
    tools = [space, {"type": "web_search", "external_web_access": False}, TOOLS[1]]
    text = CALL.replace("weather", "sky__weather") + CLOCK
    response = await heard(
        Client(saying(text, CODEC), served(CODEC)),
        stream=stream,
        tools=tools,
        max_output_tokens=190,
        truncation="auto",
    )
    told = [(one["name"], one.get("namespace")) for one in response["output"]]
    assert told == [("weather", "sky"), ("clock", None)]
    assert response["tools"] == tools


async def test_functions_in_namespaces_have_one_name_for_the_model() -> None:
    told = "{% for t in tools %}{{ t.function.name }} {% endfor %}"
    called = "{% for m in messages if m.tool_calls %}{{ m.tool_calls[0].function.name }} "
    codec = byte_level(f"{told}{called}{{% endfor %}}<tool_call>")
    space = {"type": "namespace", "name": "sky", "description": "above", "tools": TOOLS}
    call = {"type": "function_call", "call_id": "c", "name": "clock", "arguments": "{}"}
    done = {"type": "function_call_output", "call_id": "c", "output": "noon"}
    generator = saying("the")
    await heard(
        Client(generator, served(codec)),
        tools=[{"type": "web_search"}, space, TOOLS[1]],
        input=[{**call, "namespace": "sky"}, done, call, done],
    )
    prompt = byte_level().decode(generator.request.prompt)
    assert prompt == "sky__weather sky__clock clock sky__clock clock <tool_call>"
