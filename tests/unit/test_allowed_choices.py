"""A `tool_choice` of some tools: what it asks for, and what it is refused for."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from api.errors import BadRequest
from api.request_parser import RequestParser
from api.responses.bodies import read_responses
from api.responses.to_chat import FIELD_NAMES, chat_of
from api.served import ServedModel, read_whole_request
from api.text_requests import TextRequest
from tests.fakes.asking import chat, texts
from tests.fakes.text import TEMPLATE, byte_level, served
from tests.fakes.tools import TOOLS, WEATHER, tool

TOLD = "{% for t in tools %}{{ t.function.name }} {% endfor %}<tool_call>"
CUSTOM = {"type": "custom", "custom": {"name": "run"}}
IMPOSSIBLE = {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": WEATHER}}


@pytest.fixture
async def door() -> AsyncGenerator[ServedModel]:
    one = served(byte_level(TEMPLATE + TOLD))
    yield one
    one.grammars.close()


def some(*names: str, mode: str = "auto", **more: Any) -> dict[str, Any]:  # noqa: ANN401
    tools = [{"type": "function", "function": {"name": one}} for one in names]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}
    return {"tools": [*TOOLS, tool("far")], "tool_choice": choice, **more}


async def respond(door: ServedModel, fields: dict[str, Any]) -> TextRequest:
    body = read_responses(json.dumps({"input": "hi", **fields}).encode())
    return await RequestParser(door, read_whole_request).parse_chat(chat_of(body), "outer", 9)


def named(path: str, **entry: object) -> tuple[dict[str, Any], str]:
    choice = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}, entry]}
    tools = [tool("f"), CUSTOM]
    asked = {"type": "allowed_tools", "allowed_tools": choice}
    return {"tools": tools, "tool_choice": asked}, f"tool_choice.allowed_tools.tools[1]{path}"


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_the_prompt_has_all_tools_whichever_are_allowed(
    door: ServedModel, mode: str
) -> None:
    asked = await chat(some("clock", mode=mode), door=door)
    assert "weather clock far " in texts(asked)[0]
    assert texts(asked) == texts(await chat(some("far", "weather", mode=mode), door=door))


async def test_auto_is_free_text_of_which_only_these_calls_are_read(door: ServedModel) -> None:
    asked = await chat(some("far", "clock"), door=door)
    assert asked.calls[0].request.sampling.grammar is None
    assert asked.calling
    assert asked.calling.tools.mode == "auto"
    assert list(asked.calling.tools.offered) == ["clock", "far"]


async def test_required_is_one_of_them(door: ServedModel) -> None:
    for names, parallel in ((("clock",), False), (("far", "clock"), None)):
        fields = some(*names, mode="required", parallel_tool_calls=parallel)
        grammar = (await chat(fields, door=door)).calls[0].request.sampling.grammar
        assert grammar
        schema = json.loads(grammar.source)
        ways = schema["items"]["anyOf"]
        assert {one["properties"]["name"]["const"] for one in ways} == set(names)
        assert ("maxItems" in schema) is (parallel is False)


async def test_one_that_nothing_can_be_held_to_is_named_by_its_place_among_all(
    door: ServedModel,
) -> None:
    """And one that is not among them is not looked at."""
    tools = [*TOOLS, tool("far"), tool("bad", IMPOSSIBLE)]
    with pytest.raises(BadRequest) as refused:
        await chat({**some("bad", "clock", mode="required"), "tools": tools}, door=door)
    assert refused.value.param == "tools[3].function.parameters"
    await chat({**some("far", "clock", mode="required"), "tools": tools}, door=door)


async def test_beside_a_form_only_these_can_be_written(door: ServedModel) -> None:
    asked = await chat(some("clock", response_format=FORM), door=door)
    grammar = asked.calls[0].request.sampling.grammar
    assert grammar
    assert '\\"clock\\"' in grammar.source
    assert "weather" not in grammar.source


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (some(), "tool_choice.allowed_tools.tools"),
        (some("clock", "fare"), "tool_choice.allowed_tools.tools[1].function.name"),
        (some("clock", mode="none"), "tool_choice.allowed_tools.mode"),
        ({**some("clock"), "tools": []}, "tool_choice"),
        ({**some(), "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
        named(".type", type="mcp"),
        named(".type", function={"name": "f"}),
        named(".function", type="function", name="f"),
        named(".function.name", type="function", function={"name": "run"}),
        named(".custom.name", type="custom", custom={"name": "f"}),
    ],
)
async def test_what_is_not_there_is_refused_by_its_place(
    door: ServedModel, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        await chat(fields, door=door)
    assert refused.value.param == param
    assert param in str(refused.value)


@pytest.mark.parametrize(
    ("tools", "mode", "param"),
    [
        ([{"type": "function", "name": "clocks"}], "auto", "tool_choice.tools[0].name"),
        ([{"type": "custom", "name": "clock"}], "auto", "tool_choice.tools[0].name"),
        ([], "required", "tool_choice.tools"),
        ([{"type": "mcp"}], "auto", "tool_choice.tools[0].type"),
        ([{"type": "function", "name": "clock"}], "any", "tool_choice.mode"),
    ],
)
async def test_of_responses_too(
    door: ServedModel, tools: list[dict[str, Any]], mode: str, param: str
) -> None:
    choice = {"type": "allowed_tools", "mode": mode, "tools": tools}
    asked = {"tools": [{"type": "function", "name": "clock"}], "tool_choice": choice}
    with pytest.raises(BadRequest) as refused:
        await respond(door, asked)
    told = FIELD_NAMES.translate(refused.value)
    assert told.param == param
    assert str(told).startswith(f"{param}: ")
