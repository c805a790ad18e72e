"""Values that a Gemma writes without quotes are of a type that the schema accepts."""

from typing import Any

import pytest

from api.tools.tool_choice import OfferedFunctions
from tests.fakes.tools import offered, tool
from tests.unit.test_calls_beside_forms import fits, grammar_of

VALUES = ("1", "-20", "0.5", "007", "true", "false", "null", '<|"|>x<|"|>', "{b:true}", "[]")
OBJECT_KEYS = {"properties": {"b": {"type": "boolean"}}, "required": ["b"]}
OBJECT = {"type": "object", **OBJECT_KEYS}


def takes(schema: Any) -> OfferedFunctions:  # noqa: ANN401 - a schema may be anything
    one = {"type": "object", "properties": {"a": schema, "z": {"type": "boolean"}}}
    return offered([tool("f", one)])


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({"type": ["string", "null"]}, {"null", '<|"|>x<|"|>'}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"null", '<|"|>x<|"|>'}),
        ({"type": ["string", "integer"]}, {"1", "-20", '<|"|>x<|"|>'}),
        ({"type": ["string", "number"]}, {"1", "-20", "0.5", '<|"|>x<|"|>'}),
        ({"anyOf": [OBJECT, {"type": "null"}]}, {"null"}),
        ({"type": ["array", "boolean"], "items": OBJECT}, {"true", "false", "[]"}),
        ({"$ref": "#/properties/z"}, {"true", "false"}),
        ({"type": "string"}, {'<|"|>x<|"|>'}),
    ],
)
def test_a_value_is_of_a_type_that_the_schema_accepts(schema: object, values: set[str]) -> None:
    grammar = grammar_of("gemma4", "", takes(schema))
    call = "<|tool_call>call:f{a:%s}<tool_call|>"
    found = {one for one in VALUES if fits(grammar, call % one)}
    assert found - {"{b:true}"} == values


def test_a_number_has_no_leading_zeros_as_nobody_could_read_it() -> None:
    grammar = grammar_of("gemma4", "", takes({"type": ["number", "object"], **OBJECT_KEYS}))
    call = "<|tool_call>call:f{a:%s}<tool_call|>"
    assert {one for one in VALUES if fits(grammar, call % one)} >= {"1", "-20", "0.5"}
    assert not fits(grammar, call % "007")
