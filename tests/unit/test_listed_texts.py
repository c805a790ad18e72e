"""Arguments in plain text are of the strings that their schema lists, wherever it does."""

import json
from typing import Any

import pytest

from api.tools.dialects.invoke import WORD
from api.tools.parsing.listed_values import listed_values, values_of
from tests.fakes.tools import offered, tool
from tests.unit.test_calls_beside_forms import fits, grammar_of, read_by

COLOUR = {"type": "string", "enum": ["red", "blue"]}
NULL = {"type": "null"}
REFERENCE = {"$ref": "#/$defs/colour"}
LISTED: list[dict[str, Any]] = [
    COLOUR,
    REFERENCE,
    {"enum": ["red", "blue", None]},
    {"type": ["string", "null"], "enum": ["red", "blue", None]},
    {"anyOf": [COLOUR, NULL]},
    {"oneOf": [REFERENCE, NULL]},
    {"enum": ["red", "blue"], "anyOf": [{"type": "string"}, {"type": "integer"}]},
    {"anyOf": [{"const": "red"}, {"anyOf": [{"const": "blue"}, NULL]}]},
]
NOT_LISTED: list[dict[str, Any]] = [
    {"anyOf": [COLOUR, {"type": "string"}]},
    {"anyOf": [COLOUR, {"type": "integer"}]},
    {"$ref": "#/$defs/circle"},
    {"$ref": "#/$defs/nothing"},
    {},
]
CALLS = {
    "minimax_m2": '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">%s</parameter>'
    "\n</invoke>\n</minimax:tool_call>",
    "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=a>\n%s\n</parameter>\n</function>\n"
    "</tool_call>",
    "glm45": "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>%s</arg_value>\n</tool_call>",
}
DSML = (
    f'<{WORD}tool_calls>\n<{WORD}invoke name="f">\n<{WORD}parameter name="a" string="%s">%s'
    f"</{WORD}parameter>\n</{WORD}invoke>\n</{WORD}tool_calls>"
)


def schema_of(argument: dict[str, Any]) -> dict[str, Any]:
    known = {"colour": COLOUR, "circle": {"$ref": "#/$defs/circle"}}
    rest = {"required": ["a"], "additionalProperties": False, "$defs": known}
    return {"type": "object", "properties": {"a": argument}, **rest}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("argument", LISTED)
def test_only_what_is_listed_may_be_written(name: str, argument: dict[str, Any]) -> None:
    tools = offered([tool("f", schema_of(argument))])
    grammar, may_be_null = grammar_of(name, "", tools), "null" in json.dumps(argument)
    for text, value in (("red", "red"), ("blue", "blue"), ("null", None)):
        assert fits(grammar, CALLS[name] % text) is (value is not None or may_be_null)
        if value is not None or may_be_null:
            [(_, arguments, whole)] = read_by(name, CALLS[name] % text, tools).calls
            assert (json.loads(arguments), whole) == ({"a": value}, True)
    for text in ("", "re", "green", "redblue", '"red"'):
        assert not fits(grammar, CALLS[name] % text)


@pytest.mark.parametrize("argument", LISTED)
def test_a_deepseek_says_that_null_is_no_text(argument: dict[str, Any]) -> None:
    tools, may_be_null = (
        offered([tool("f", schema_of(argument))]),
        "null" in json.dumps(argument),
    )
    grammar = grammar_of("deepseek_v32", "", tools)
    for text, string, value in (("red", "true", "red"), ("null", "false", None)):
        assert fits(grammar, DSML % (string, text)) is (value is not None or may_be_null)
        [(_, arguments, _)] = read_by("deepseek_v32", DSML % (string, text), tools).calls
        assert json.loads(arguments) == {"a": value}
    for string, text in (("true", "null"), ("true", "green"), ("false", '"red"')):
        assert not fits(grammar, DSML % (string, text))


@pytest.mark.parametrize("argument", NOT_LISTED)
def test_other_texts_are_free(argument: dict[str, Any]) -> None:
    grammar = grammar_of("minimax_m2", "", offered([tool("f", schema_of(argument))]))
    for text in ("red", "green", "null", ""):
        assert fits(grammar, CALLS["minimax_m2"] % text)


def test_references_are_followed_once_each() -> None:
    twice = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)}
    root = {"$defs": {**twice, "d60": COLOUR}}
    assert listed_values({"$ref": "#/$defs/d0"}, root) == COLOUR["enum"]


@pytest.mark.parametrize("schema", [True, {"enum": "red"}, {"anyOf": 5}, {"enum": [["red"]]}])
def test_what_lists_nothing_has_no_values(schema: object) -> None:
    assert listed_values(schema, {}) is None


def test_ways_within_ways_are_looked_at_once_each() -> None:
    deep: dict[str, Any] = COLOUR
    for _ in range(60):
        deep = {"anyOf": [deep, NULL]}
    assert listed_values(deep, {}) == [*COLOUR["enum"], None]


def test_a_number_is_no_truth_value_and_its_own_without_a_fraction() -> None:
    assert values_of({"allOf": [{"enum": [True, 1, 2.0]}, {"enum": [1.0, 2]}]}, {}) == [1, 2.0]
