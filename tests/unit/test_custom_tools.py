"""Custom tools: functions of one text to the model, and that text to the client."""

import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from api.errors import BadRequest
from api.served import ServedModel
from api.tools.inputs import CustomInputReader, custom_arguments
from tests.fakes.asking import HI, chat, texts
from tests.fakes.text import TEMPLATE, byte_level, served
from tests.fakes.tools import TOOLS, cut, tool

TOLD = (
    "{% for t in tools %}{{ t.type }} {{ t.function.name }} {{ t.function.description }} "
    "{{ (t.function.parameters or {}).required }} {% endfor %}"
    "{% for m in messages %}{% for c in m.tool_calls or [] %}"
    "{{ c.type }} {{ c.function.name }} {{ c.function.arguments.input }} {{ c.custom }}"
    "{% endfor %}{% endfor %}<tool_call>"
)
FORMATS: list[Any] = [
    ({"type": "grammar"}, "grammar"),
    ({"type": "xml"}, "type"),
    ({}, "type"),
]


@pytest.fixture
async def door() -> AsyncGenerator[ServedModel]:
    one = served(byte_level(TEMPLATE + TOLD))
    yield one
    one.grammars.close()


def custom(name: str = "run", **more: object) -> dict[str, Any]:
    return {"type": "custom", "custom": {"name": name, **more}}


def given_of(pieces: Sequence[str]) -> tuple[str, str]:
    """What is told as it comes, and what at the end."""
    reader = CustomInputReader()
    return "".join([reader.read(one) for one in pieces]), reader.fallback


@given(st.text(), st.data())
@example('🦊 \u2028 "\\/\n\x01\x7f é', None)
def test_a_text_is_what_its_json_says(text: str, data: st.DataObject | None) -> None:
    """Written with escapes or without, and wherever it is cut."""
    for ascii_ in (True, False):
        written = json.dumps({"input": text}, ensure_ascii=ascii_)
        pieces = data.draw(cut(written)) if data else [written]
        assert given_of(pieces) == given_of(written) == (text, "")
    assert given_of([custom_arguments(text)]) == (text, "")


@given(st.text(min_size=1))
def test_it_is_told_as_it_comes(text: str) -> None:
    """Nothing is held back but half of an escape, or of a pair of them."""
    reader = CustomInputReader()
    reader.read('{"input": "')
    for letter in text:
        assert reader.read(json.dumps(letter)[1:-1]) == letter


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('{ "lang" : ["}", {"input": "no"}] , "n":-1.5 ,"b":true,"input" : "yes" }', "yes"),
        ('{"input": "a", "input": "b", "more": "c"}', "a"),
        ('{"inp\\u0075t": "a"}', "a"),
        (r'{"input": "\u0041\ud83d\ude00\b\f\r\t\/"}', "A😀\b\f\r\t/"),
        (r'{"input": "\ud83d.\ude00\ud83d\n\ud83d"}', "\ufffd.\ufffd\ufffd\n\ufffd"),
        (r'{"input": "\ud83d\ud83d\ude00"}', "\ufffd😀"),
        ('{"input": "', ""),
        ('{"input": "a\\', "a"),
        ('{"input": "a\\ud83d', "a"),
        ('{"input": ""}', ""),
        ("{ }", ""),
        ("", ""),
    ],
)
def test_of_the_arguments_it_is_the_text_of_that_name(written: str, expected: str) -> None:
    for pieces in ([written], written):
        assert given_of(pieces) == (expected, "")


@pytest.mark.parametrize(
    "written",
    [
        '{"code": "print(1)"}',
        '{"input": 5}',
        '{"input": {"input": "a"}, "b": [ ]}',
        '{"Input": "a"}',
    ],
)
def test_arguments_without_it_are_told_whole(written: str) -> None:
    """So nothing that the model wrote is lost."""
    for pieces in ([written], written):
        assert given_of(pieces) == ("", written)


async def test_templates_know_functions_only(door: ServedModel) -> None:
    asked = await chat({"tools": [custom(description="code"), *TOOLS]}, door=door)
    [prompt] = texts(asked)
    assert "function run code ['input'] function weather" in prompt
    bare = await chat({"tools": [custom(format={"type": "text"})]}, door=door)
    assert "function run  ['input']" in texts(bare)[0]


async def test_a_past_call_is_one_of_that_function(door: ServedModel) -> None:
    call = {"id": "c", "type": "custom", "custom": {"name": "run", "input": 'a\n"b"'}}
    done = {"role": "tool", "tool_call_id": "c", "content": "7"}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    asked = await chat({"messages": [*HI, said, done], "tools": [custom()]}, door=door)
    [prompt] = texts(asked)
    assert 'function run a\n"b" <tool_call>' in prompt


@pytest.mark.parametrize("choice", ["required", {"type": "custom", "custom": {"name": "run"}}])
async def test_one_that_has_to_be_called_is_held_to_one_text(
    door: ServedModel, choice: object
) -> None:
    asked = await chat({"tools": [custom()], "tool_choice": choice}, door=door)
    grammar = asked.calls[0].request.sampling.grammar
    assert grammar
    schema = json.loads(grammar.source)
    if choice == "required":
        schema = schema["items"]["anyOf"][0]["properties"]["parameters"]
    assert schema["required"] == ["input"]
    assert schema["properties"]["input"]["type"] == "string"
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        *(
            ({"tools": [custom(format=one)]}, f"tools[0].custom.format.{at}")
            for one, at in FORMATS
        ),
        ({"tools": [tool("f"), custom("f")]}, "tools[1].custom.name"),
        ({"tools": [custom("a b")]}, "tools[0].custom.name"),
        ({"tools": [{"type": "custom", "name": "f"}]}, "tools[0].custom"),
        (
            {
                "tools": [custom()],
                "tool_choice": {"type": "function", "function": {"name": "run"}},
            },
            "tool_choice.function.name",
        ),
        (
            {"tools": TOOLS, "tool_choice": {"type": "custom", "custom": {"name": "clock"}}},
            "tool_choice.custom.name",
        ),
    ],
)
async def test_what_cannot_be_kept_is_refused_by_its_place(
    door: ServedModel, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        await chat(fields, door=door)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("call", "where"),
    [
        ({"custom": {"name": "run"}}, ".custom.input"),
        ({"custom": 5}, ".custom"),
        ({}, ".custom"),
    ],
)
async def test_a_broken_past_call_is_refused(
    door: ServedModel, call: dict[str, Any], where: str
) -> None:
    said = {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", **call}]}
    with pytest.raises(BadRequest) as refused:
        await chat({"messages": [*HI, said]}, door=door)
    assert refused.value.param == f"messages[1].tool_calls[0]{where}"
