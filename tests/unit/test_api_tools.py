"""What a chat may say of tools, what becomes of it, and how it is told that it may not."""

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest

from api.errors import BadRequest
from api.served import ServedModel
from api.text_requests import TextRequest
from api.tools.calling import ToolCalling
from api.tools.deltas import CallDelta
from api.tools.dialects.deepseek import CALL, SEPARATOR
from api.tools.dialects.dialect import long_id, short_id
from api.tools.dialects.kimi import new_id
from api.tools.dialects.known import DIALECTS, OTHER_NAMES, ToolCallParser, find_dialect
from api.tools.tool_choice import ToolSettings
from engine.errors import GrammarCheckBusy, GrammarRefused
from engine.request import FinishReason, Grammar
from tests.fakes.asking import HI, Fields, chat, texts
from tests.fakes.text import TEMPLATE, byte_level, served
from tests.fakes.tools import TOOLS, WEATHER, offered, tool

HERMES = TEMPLATE + "<tool_call>"
REQUIRED = {"tools": TOOLS, "tool_choice": "required"}
NAMED = {"type": "function", "function": {"name": "weather"}}
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": WEATHER}}
IMPOSSIBLE = {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}
STRICT = tool("f", IMPOSSIBLE)
STRICT["function"]["strict"] = True
TAG = {"type": "structural_tag", "format": {"type": "any_text"}}


@pytest.fixture
async def door() -> AsyncGenerator[ServedModel]:
    one = served(byte_level(HERMES))
    yield one
    one.grammars.close()


def schema_of(asked: TextRequest) -> Any:  # noqa: ANN401  JSON
    grammar = asked.calls[0].request.sampling.grammar
    assert grammar
    assert grammar.kind == "json_schema"
    return json.loads(grammar.source)


def fields_of(parameters: object, **more: object) -> Mapping[str, Any]:
    function = {"name": "f", "parameters": parameters}
    return {"tools": [{"type": "function", "function": function}], **more}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": "f", "tool_choice": "none"}, "tools"),
        ({"tools": [5]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [*TOOLS, {"type": "browser"}]}, "tools[2].type"),
        ({"tools": [*TOOLS, tool("")]}, "tools[2].function.name"),
        ({"tools": [tool("a b")]}, "tools[0].function.name"),
        ({"tools": [tool("a\n")]}, "tools[0].function.name"),
        ({"tools": [tool("a" * 129)]}, "tools[0].function.name"),
        ({"tools": [tool("f"), tool("f")]}, "tools[1].function.name"),
        (fields_of([]), "tools[0].function.parameters"),
        (fields_of({"type": "string"}), "tools[0].function.parameters"),
        ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tools": TOOLS, "tool_choice": {"type": "browser"}}, "tool_choice.type"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice.function.name",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": NAMED}, "tool_choice"),
        ({"tools": TOOLS, "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        (
            {**REQUIRED, "response_format": {"type": "json_schema"}},
            "response_format.json_schema",
        ),
        ({**REQUIRED, "response_format": TAG}, "tool_choice"),
        ({"tools": [STRICT], "response_format": FORM}, "tools[0].function.parameters"),
        ({**REQUIRED, "guided_regex": "a"}, "tool_choice"),
        (
            {"tools": [*TOOLS, tool("f", IMPOSSIBLE)], "tool_choice": "required"},
            "tools[2].function.parameters",
        ),
        (
            {
                "tools": [*TOOLS, tool("f", IMPOSSIBLE)],
                "tool_choice": {"type": "function", "function": {"name": "f"}},
            },
            "tools[2].function.parameters",
        ),
    ],
)
async def test_a_wrong_field_of_tools_is_named(
    door: ServedModel, fields: Fields, param: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        await chat(fields, door=door)
    assert refused.value.param == param


async def test_tools_nest_no_deeper_than_can_be_looked_at(door: ServedModel) -> None:
    deep: dict[str, Any] = {}
    for _ in range(400):
        deep = {"properties": {"a": deep}}
    with pytest.raises(BadRequest):
        await chat(fields_of(deep, tool_choice="required"), door=door)


async def test_without_a_sign_in_its_template_a_model_is_not_asked_for_calls() -> None:
    for choice in ({}, {"tool_choice": "auto"}):
        with pytest.raises(BadRequest, match="--tool-call-parser") as refused:
            await chat({"tools": TOOLS, **choice})
        assert refused.value.param == "tools"
    assert (await chat({"tools": TOOLS, "tool_choice": "none"})).calling is None
    assert (await chat({"tool_choice": "auto", "parallel_tool_calls": False})).calling is None


async def test_what_must_be_called_needs_no_sign() -> None:
    with_none = served()
    asked = await chat(REQUIRED, door=with_none)
    with_none.grammars.close()
    assert asked.calling


async def test_auto_is_free_text_and_the_default(door: ServedModel) -> None:
    for choice in ({}, {"tool_choice": None}, {"tool_choice": "auto"}):
        asked = await chat({"tools": TOOLS, **choice}, door=door)
        assert asked.calls[0].request.sampling.grammar is None
        assert asked.calling
        assert asked.calling.parser is DIALECTS["hermes"].parser


async def test_a_named_function_has_its_own_form(door: ServedModel) -> None:
    asked = await chat({"tools": TOOLS, "tool_choice": NAMED}, door=door)
    assert schema_of(asked) == WEATHER
    clock = {"type": "function", "function": {"name": "clock"}}
    asked = await chat({"tools": TOOLS, "tool_choice": clock}, door=door)
    assert schema_of(asked)["additionalProperties"] is False


@pytest.mark.parametrize(("parallel", "most"), [(None, None), (True, None), (False, 1)])
async def test_required_is_a_list_of_calls(
    door: ServedModel, parallel: bool | None, most: int | None
) -> None:
    asked = await chat({**REQUIRED, "parallel_tool_calls": parallel}, door=door)
    schema = schema_of(asked)
    assert (schema["minItems"], schema.get("maxItems")) == (1, most)
    first, second = schema["items"]["anyOf"]
    assert first["properties"] == {"name": {"const": "weather"}, "parameters": WEATHER}
    assert second["properties"]["name"] == {"const": "clock"}
    assert first["required"] == ["name", "parameters"]


async def test_references_within_a_schema_lead_where_they_led(door: ServedModel) -> None:
    schema = {
        "$id": "https://here/f",
        "type": "object",
        "properties": {
            "$ref": {"$ref": "#/$defs/a~1b"},
            "self": {"type": "array", "items": {"$ref": "#"}, "maxItems": 1},
            "text": {"const": {"$ref": "#/$defs"}},
        },
        "$defs": {"a/b": {"type": "integer"}},
    }
    tools = [tool("clock"), tool("f", schema)]
    asked = await chat({"tools": tools, "tool_choice": "required"}, door=door)
    place = "#/items/anyOf/1/properties/parameters"
    moved = schema_of(asked)["items"]["anyOf"][1]["properties"]["parameters"]
    assert moved["properties"] == {
        "$ref": {"$ref": f"{place}/$defs/a~1b"},
        "self": {"type": "array", "items": {"$ref": place}, "maxItems": 1},
        "text": {"const": {"$ref": "#/$defs"}},
    }
    assert "$id" not in moved


@pytest.mark.parametrize("fields", [{"tool_choice": "none"}, {"tool_choice": "auto"}, REQUIRED])
async def test_tools_are_shown_to_the_template_as_they_came(fields: Fields) -> None:
    template = (
        "{% for t in tools %}{{ t.function.name }}{{ t.function.more }} {% endfor %}<tool_call>"
    )
    door = served(byte_level(template))
    tools = [{**one, "function": {**one["function"], "more": "!"}} for one in TOOLS]
    asked = await chat({**fields, "tools": tools}, door=door)
    door.grammars.close()
    assert texts(asked) == ["weather! clock! <tool_call>"]


async def test_what_a_tool_said_comes_to_the_template_with_its_names() -> None:
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}"
        "{% if m.tool_calls %}{{ m.tool_calls[0].function.arguments.city }}{% endif %}"
        "{% if m.tool_call_id %}{{ m.tool_call_id }}/{{ m.name }}{% endif %};{% endfor %}"
    )
    function = {"name": "weather", "arguments": '{"city": "Paris"}'}
    messages = [
        *HI,
        {"role": "assistant", "tool_calls": [{"id": "c1", "function": function}]},
        {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": "sunny"},
    ]
    asked = await chat({"messages": messages}, door=served(byte_level(template)))
    assert texts(asked) == ["user:hi;assistant:Paris;tool:sunnyc1/weather;"]


LLAMA_TEMPLATE = """<|start_header_id|>{"name": function name, "parameters": dictionary}"""
TEMPLATES: list[tuple[object, str | None]] = [
    ("{{ '<tool_call>\\n' }}", "hermes"),
    ({"default": "", "tool_use": "<tool_call>"}, "hermes"),
    (LLAMA_TEMPLATE, "llama3_json"),
    ("{{ '[TOOL_CALLS]' + name + '[ARGS]' }}", "mistral"),
    ("<tool_call>\n<function=f>\n<parameter=a>", "qwen3_coder"),
    ("<tool_call>{{ name }}<arg_key>", "glm45"),
    ("<tool_calls><tool_call>{{ name }}<arg_key>", None),
    ("<tool_calls><tool_call>", None),
    ('<tool_call><invoke name="', None),
    ("a list behind <|tool_call|>", "granite"),
    ("<seed:tool_call>\n<function=f>\n<parameter=a>1", "seed_oss"),
    (f"{{{{ '{CALL}' + type + '{SEPARATOR}' + name + '\\n' + '```json' }}}}", "deepseek_v3"),
    (f"{{{{ '{CALL}' + name + '{SEPARATOR}' }}}}", "deepseek_v31"),
    ("<|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>", "kimi_k2"),
    ("<|start_header_id|>", None),
    ("", None),
    (None, None),
]


@pytest.mark.parametrize(("template", "name"), TEMPLATES)
def test_a_template_tells_how_its_model_calls(template: object, name: str | None) -> None:
    assert find_dialect("auto", template) is (DIALECTS[name] if name else None)
    assert find_dialect("mistral", template) is DIALECTS["mistral"]


def test_every_dialect_can_be_chosen() -> None:
    names = {"auto", *DIALECTS, *OTHER_NAMES}
    assert set(ToolCallParser.__args__) == names  # type: ignore[attr-defined]


def test_calls_get_names_of_their_own() -> None:
    assert len({long_id() for _ in range(9)} | {short_id() for _ in range(9)}) == 18
    assert all(len(short_id()) == 9 and short_id().isalnum() for _ in range(99))


def kimi(*own: str) -> str:
    """An answer that calls `clock` by these names."""
    calls = (f"<|tool_call_begin|>{one}<|tool_call_argument_begin|>{{}}" for one in own)
    return "<|tool_calls_section_begin|>" + "<|tool_call_end|>".join(calls)


def ids(text: str, *past: str) -> list[str]:
    """The names of all calls in a Kimi's answer."""
    use, dialect = ToolSettings(offered(), "auto"), DIALECTS["kimi_k2"]
    teller = ToolCalling(use, dialect.parser, dialect.new_id, past).new_stream()
    said = teller.read(text, FinishReason.STOP)
    return [str(one.id) for one in said if isinstance(one, CallDelta) and one.function.name]


def test_a_kimis_calls_keep_their_names_and_no_two_have_the_same() -> None:
    assert ids(kimi("functions.clock:7")) == ["functions.clock:7"]
    assert ids(kimi("clock:0")) == ["clock:0"]
    twice = kimi("functions.clock:2", "functions.clock:2", "functions.clock:4")
    expected = ["functions.clock:2", "functions.clock:3", "functions.clock:4"]
    past = "functions.f:0", "functions.clock:1"
    assert ids(twice, *past[:1]) == ids(twice, *past) == expected
    late = "functions.clock:2", "functions.clock:3"
    assert ids(twice, *late) == [expected[0], "functions.clock:4", "functions.clock:5"]
    assert new_id("f", 4) == "functions.f:4"


async def test_the_form_is_one_that_can_be_kept_to(door: ServedModel) -> None:
    """What schemas.py makes is taken by the grammars' examiner, with a reference inside."""
    inner = {"type": "object", "properties": {"x": {"$ref": "#/$defs/n"}}, "required": ["x"]}
    tools = [tool("f", {**inner, "$defs": {"n": {"type": "integer"}}}), tool("g", {})]
    asked = await chat({"tools": tools, "tool_choice": "required"}, door=door)
    grammar = asked.calls[0].request.sampling.grammar
    assert isinstance(grammar, Grammar)
    await door.grammars.checked(grammar)


async def test_a_tool_is_blamed_only_by_a_checker_that_has_time(
    door: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That all of them together are refused is known already."""
    looks = list[object]()

    async def checked(_checker: object, grammar: object) -> None:
        looks.append(grammar)
        raise GrammarRefused("no") if len(looks) == 1 else GrammarCheckBusy("busy")

    monkeypatch.setattr(type(door.grammars), "checked", checked)
    with pytest.raises(BadRequest) as refused:
        await chat(REQUIRED, door=door)
    assert refused.value.param == "tool_choice"
