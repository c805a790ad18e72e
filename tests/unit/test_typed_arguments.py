"""Arguments that models write as plain text become JSON by the function's schema."""

import pytest

from api.tools.dialects.known import DIALECTS
from api.tools.parsing.argument_types import ArgumentTypes
from api.tools.parsing.json_types import ANY_TYPE, STRING_ONLY
from tests.fakes.tools import offered, read, tool

CODER = DIALECTS["qwen3_coder"].parser
TINY = "0.1000000000000000055511151231257827"  # more digits than a float has
DEFS = {
    "Zip": {"type": "string"},
    "a/b c": {"$ref": "#/$defs/Zip"},
    "Place": {"type": "object"},
    "Circle": {"anyOf": [{"$ref": "#/$defs/Circle"}, {"type": "string"}]},
}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": ["string", "null"]}, "10115", '"10115"'),
        ({"type": ["string", "null"]}, "null", "null"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "true", '"true"'),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "12", "12"),
        ({"type": ["string", "integer"]}, "true", '"true"'),
        ({"enum": ["1", "2"]}, "1", '"1"'),
        ({"enum": ["1", 2]}, "2", "2"),
        ({"const": "true"}, "true", '"true"'),
        ({"type": "boolean"}, "true", "true"),
        ({"type": "integer"}, "x", '"x"'),
        ({}, "1", "1"),
        ({"$ref": "#/$defs/Zip"}, "10115", '"10115"'),
        ({"$ref": "#/$defs/a~1b%20c"}, "10115", '"10115"'),
        ({"$ref": "#/$defs/Circle"}, "1", "1"),
        ({"$ref": "#/$defs/None"}, "1", "1"),
        ({"$ref": "elsewhere"}, "1", "1"),
        ({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Place"}]}, '{"x": 1}', '{"x": 1}'),
        ({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Place"}]}, "1", '"1"'),
        ({"anyOf": [{"type": "string"}, {}]}, "1", "1"),
        ({"anyOf": [{"type": "string"}, {"type": "text"}]}, "1", "1"),
        ({"allOf": [{"type": "string"}, {"minLength": 1}]}, "1", '"1"'),
        ({"type": "string", "anyOf": [{"minLength": 1}, {"const": ""}]}, "1", '"1"'),
        ({"type": ["string", "integer"], "enum": ["1", "2"]}, "1", '"1"'),
        ({"type": ["string", ["null"], {}]}, "1", "1"),
        ({"enum": []}, "1", "1"),
        ({"type": "boolean"}, "True", "true"),
        ({"type": ["integer", "null"]}, " None ", "null"),
        ({"type": ["boolean", "string"]}, "True", '"True"'),
        ({}, "None", '"None"'),
        ({"type": "number"}, TINY, TINY),
        ({"type": "number"}, " 1E5 ", "1E5"),
        ({"type": "number"}, "1e400", "1e400"),
        ({"type": "array"}, "[-2E999, 1]", "[-2E999, 1]"),
        ({"type": ["number", "string"]}, "1e400", "1e400"),
        ({"type": "string"}, "1e400", '"1e400"'),
        ({"type": "number"}, "NaN", '"NaN"'),
        ({"type": "object"}, '{"a":  1, "a": 2}', '{"a":  1, "a": 2}'),
        ({"type": "array"}, "['a', True, None]", '["a", true, null]'),
        ({"type": ["array", "string"]}, "['a']", "\"['a']\""),
        ({"type": "object"}, '{"a": "\n"', r'"{\"a\": \"\n\""'),
        ({"type": "integer"}, " ", '" "'),
    ],
)
def test_the_schema_says_what_a_text_is(
    schema: dict[str, object], text: str, value: str
) -> None:
    one = offered([tool("f", {"properties": {"a": schema}, "$defs": DEFS})])
    asked = f"<tool_call><function=f><parameter=a>\n{text}\n</parameter></function></tool_call>"
    assert read(CODER, [asked], one).calls == [("f", f'{{"a": {value}}}', True)]


@pytest.mark.parametrize(
    ("name", "broken", "whole"),
    [
        (
            "glm45",
            "<tool_call>f<arg_key>a<arg_value>1</arg_value></tool_call>",
            "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>",
        ),
        (
            "qwen3_coder",
            "<tool_call><function=f><parameter=a<b>1</parameter></function></tool_call>",
            "<tool_call><function=f><parameter=a>1</parameter></function></tool_call>",
        ),
        (
            "qwen3_coder",
            "<tool_call><function=f<parameter=a>1</parameter></function></tool_call>",
            "<tool_call><function=f><parameter=a>1</parameter></function></tool_call>",
        ),
    ],
)
def test_a_tag_that_stays_open_swallows_no_others(name: str, broken: str, whole: str) -> None:
    found = read(DIALECTS[name].parser, [broken + whole])
    assert found.calls[-1] == ("f", '{"a": 1}', True)
    assert [one for one in found.calls[:-1] if one[2]] == []
    assert broken[-20:] in found.content


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("gemma4", "<|tool_call>call:f{a:1e400,b:{c:[-1E999]}}<tool_call|>"),
        ("lfm2", '<|tool_call_start|>[f(a=1e400, b={"c":[-1E999]})]<|tool_call_end|>'),
    ],
)
def test_numbers_beyond_a_floats_range_stay_numbers(name: str, call: str) -> None:
    found = read(DIALECTS[name].parser, [call], offered([tool("f", {})]))
    assert found.calls == [("f", '{"a": 1e400, "b": {"c":[-1E999]}}', True)]


def test_parameters_may_stand_behind_a_reference() -> None:
    schema = {"$ref": "#/$defs/F", "$defs": {"F": {"properties": {"a": {"const": "1"}}}}}
    asked = "<tool_call><function=f><parameter=a>1</parameter></function></tool_call>"
    found = read(CODER, [asked], offered([tool("f", schema)]))
    assert found.calls == [("f", '{"a": "1"}', True)]


def test_a_schema_is_looked_at_once_however_often_it_leads_to_the_same() -> None:
    """Each of these leads twice to the next: two to the power of a hundred ways."""
    twice = {str(n): {"anyOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(100)}
    deep = {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(100, 5000)}
    one = {"properties": {"a": {"$ref": "#/$defs/0"}}, "$defs": twice}
    assert ArgumentTypes(offered([tool("f", one)])).of("f", "a") == ANY_TYPE
    deeper = {**one, "$defs": {**twice, **deep}}
    assert ArgumentTypes(offered([tool("f", deeper)])).of("f", "a") == ANY_TYPE
    ends = {**one, "$defs": {**twice, "100": {"type": "string"}}}
    assert ArgumentTypes(offered([tool("f", ends)])).of("f", "a") == STRING_ONLY
