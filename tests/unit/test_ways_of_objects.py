"""What an anyOf, oneOf or allOf says of all arguments holds in calls that are not JSON, too."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from api.tools.dialects.known import DIALECTS
from api.tools.parsing.argument_types import ArgumentTypes
from api.tools.parsing.json_types import SEVERAL
from api.tools.parsing.ways import MOST_WAYS
from api.wire import WireError
from engine.errors import GrammarRefused
from engine.grammars.checking import GrammarChecker
from tests.fakes.call_starts import start_of
from tests.fakes.tools import offered, read
from tests.unit.test_calls_beside_forms import FAMILIES
from tests.unit.test_odd_keys import TAGGED
from tests.unit.test_strict_calls import grammar_of, strict, walked

COUNT, TEXT, DIGIT = {"type": "integer"}, {"type": "string"}, {"enum": ["5"]}
CLOSED = {"additionalProperties": False}
TYPES = {"integer": int, "string": str, "boolean": bool, "null": type(None)}
HELD = [one for one in FAMILIES if one[0] in {*TAGGED, "lfm2", "olmo3", "gemma4"}]
Schema = dict[str, Any]


def of(*needed: str, **members: object) -> Schema:
    return {"properties": members, "required": [*(needed or members)]}


def kind(name: str, **members: object) -> Schema:
    return of(kind={"const": name}, **members)


SCHEMAS: Sequence[Schema] = [
    {"anyOf": [of(a=COUNT), of(b=COUNT)]},
    {"properties": {"a": DIGIT, "b": COUNT}, "anyOf": [of("a"), of("b")]},
    {"oneOf": [kind("x", a=COUNT), kind("y", b={"type": "boolean"})]},
    {"properties": {"kind": TEXT}, "oneOf": [kind("x", a=COUNT), kind("y")]},
    {"allOf": [of(a=COUNT), of(b={"enum": ["x", "y"]})]},
    {"allOf": [{"$ref": "#/$defs/a"}, of("b", b=COUNT)], "$defs": {"a": of(a=COUNT)}},
    {"$ref": "#/$defs/a", "required": ["b"], "$defs": {"a": of("a", a=COUNT, b=COUNT)}},
    {"properties": {"a": COUNT}, "anyOf": [of(b=COUNT), of(a={})], **CLOSED},
    {"anyOf": [{"type": "null"}, of(a=COUNT)]},
    {"properties": {"a": TEXT}, "anyOf": [of(a={"enum": ["x"]}), of(a={"enum": ["y"]})]},
    {"allOf": [{"anyOf": [of(a=COUNT), of(b=COUNT)]}, {"anyOf": [of(c=COUNT), of(d=COUNT)]}]},
]
OPEN: Sequence[Schema] = [
    {"additionalProperties": COUNT},
    {"additionalProperties": {"enum": ["x", "</parameter>", "y"]}},
    {"additionalProperties": {"type": ["boolean", "null"]}},
    {"additionalProperties": {"$ref": "#/$defs/a"}, "$defs": {"a": COUNT}},
    {"additionalProperties": DIGIT, "minProperties": 1},
]
REFUSED: Sequence[Schema] = [
    {"oneOf": [of(a=COUNT), of(b=COUNT)]},
    {"allOf": [of(a=COUNT), {"properties": {"b": COUNT}, **CLOSED}]},
    {"anyOf": [of(a=COUNT), {"not": {"required": ["b"]}}]},
    {"if": {"required": ["a"]}, "then": {"required": ["b"]}},
    {"properties": {"a": COUNT}, "unevaluatedProperties": False},
    {"allOf": [False]},
]


def fits(schema: Any, value: Any, root: Schema) -> bool:  # noqa: ANN401  JSON of any shape
    """As far as the schemas here say."""
    if isinstance(schema, bool):
        return schema
    said = [schema.get("enum", [value]), [schema.get("const", value)]]
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    ways = [*schema.get("allOf", []), root["$defs"]["a"] if "$ref" in schema else True]
    numbers = {
        key: sum(fits(one, value, root) for one in schema.get(key, [])) for key in SEVERAL
    }
    named, other = schema.get("properties", {}), schema.get("additionalProperties", True)
    members = value.items() if isinstance(value, dict) else ()
    return (
        all(value in one for one in said)
        and (not kinds or type(value) in [TYPES[one] for one in kinds])
        and all(fits(one, value, root) for one in ways)
        and all(
            number if key == "anyOf" else number == 1
            for key, number in numbers.items()
            if key in schema
        )
        and all(fits(named.get(key, other), one, root) for key, one in members)
        and {*schema.get("required", [])} <= {key for key, _ in members}
        and len(members) >= schema.get("minProperties", 0)
    )


@pytest.mark.parametrize("schema", [*SCHEMAS, *OPEN])
@pytest.mark.parametrize(("name", "template"), HELD)
def test_strict_calls_fit_all_that_is_said_of_an_object(
    name: str, template: str, schema: Schema
) -> None:
    tools = offered([strict("f", schema)])
    grammar = grammar_of(name, template, tools, parallel=False)
    for seed in range(4):
        text = walked(grammar, start_of(name, template), seed)
        [(_, arguments, whole)] = read(DIALECTS[name].parser, [*text], tools).calls
        assert whole, text
        assert fits(schema, json.loads(arguments), schema), text


@pytest.mark.parametrize("name", ["hermes", "glm45", "qwen3_coder", "lfm2", "gemma4"])
@pytest.mark.parametrize("schema", REFUSED)
def test_what_cannot_be_written_is_refused_as_in_json(name: str, schema: Schema) -> None:
    with GrammarChecker() as checker, pytest.raises(GrammarRefused):
        checker.check(grammar_of(name, "", offered([strict("f", schema)])))


def test_too_many_ways_are_refused_and_read_as_any() -> None:
    two = {"anyOf": [of(a=TEXT), of(b=TEXT)]}
    deep: Schema = {"$ref": "#/$defs/0", "$defs": {"99": of(a=TEXT)}}
    for n in range(99):
        deep["$defs"][str(n)] = {"allOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2}
    for schema in ({"allOf": [two] * MOST_WAYS}, deep):
        tools = offered([strict("f", schema)])
        with pytest.raises(WireError, match="arguments of a function"):
            grammar_of("glm45", "", tools)
        assert str in ArgumentTypes(tools).of("f", "a")


def test_arguments_are_of_the_types_of_the_ways_that_name_them() -> None:
    types = ArgumentTypes(offered([strict("f", one) for one in SCHEMAS[:1]]))
    assert types.of("f", "b") == {int}
    others = {"additionalProperties": TEXT}
    ways = [{**of(b=TEXT), **others}, {**of(b=COUNT), **others}]
    types = ArgumentTypes(offered([strict("f", {"properties": {"a": TEXT}, "anyOf": ways})]))
    assert [types.of("f", key) for key in "abc"] == [{str}, {str, int}, {str}]
    assert types.properties("f").keys() == {"a", "b"}
