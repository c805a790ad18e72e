"""A `oneOf` whose ways a number tells apart is enforced; one whose ways may overlap is not."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from engine.grammars.exclusive_ways import with_exclusive_ways
from engine.request import Grammar
from tests.unit.test_grammar_kinds import allows

Schema = Mapping[str, Any]
LETTER, TEXT = {"type": "string", "maxLength": 1}, {"type": "string"}


def way(tag: Schema, value: Schema, **rest: object) -> Schema:
    """An object that its `k` tells apart, with a `v`."""
    return {
        "type": "object",
        "properties": {"k": tag, "v": value},
        "required": ["k", "v"],
        "additionalProperties": False,
        **rest,
    }


def grammar(schema: Schema) -> Grammar:
    return Grammar("json_schema", json.dumps(schema))


ONE, TWO = way({"const": 1}, LETTER), way({"enum": [2, 3.5]}, TEXT)
BY_NAME = {
    "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
    "$defs": {"a": ONE, "b": TWO},
}


BY_PLACE = {
    "oneOf": [{"$ref": "#/$defs/a/0"}, {"$ref": "#/$defs/a/1"}],
    "$defs": {"a": [ONE, TWO]},
}


@pytest.mark.parametrize("schema", [{"oneOf": [ONE, TWO]}, BY_NAME, BY_PLACE])
def test_a_number_tells_objects_apart(schema: Schema) -> None:
    for text in ('{"k":1,"v":"x"}', '{"k":2,"v":"xy"}', '{"k":3.5,"v":"xy"}'):
        assert allows(grammar(schema), text)
    for text in ('{"k":1,"v":"xy"}', '{"k":4,"v":"x"}', "1"):
        assert not allows(grammar(schema), text)


def test_true_is_not_1() -> None:
    ways = [way({"const": True}, LETTER), way({"const": 1}, TEXT)]
    assert with_exclusive_ways({"oneOf": ways}) == {"anyOf": ways}


def test_listed_values_exclude_each_other() -> None:
    levels = {"oneOf": [{"const": 1, "title": "low"}, {"const": 2, "title": "high"}]}
    inner = {"type": "array", "items": levels, "maxItems": 2}
    assert allows(grammar(inner), "[1,2]")
    assert not allows(grammar(inner), "[3]")


def test_so_it_is_within_a_structural_tag() -> None:
    layout = {"type": "json_schema", "json_schema": {"oneOf": [ONE, TWO]}}
    tag = Grammar("structural_tag", json.dumps({"type": "structural_tag", "format": layout}))
    assert allows(tag, '{"k":1,"v":"x"}')
    assert not allows(tag, '{"k":1,"v":"xy"}')


@pytest.mark.parametrize(
    "other",
    [
        way({"const": 1}, TEXT),
        way({"const": 1.0}, TEXT),
        way({"enum": [0, 1]}, TEXT),
        way({"const": 2}, TEXT, required=["v"]),
        {"properties": {"k": {"const": 2}}, "required": ["k"]},
        way({"type": "integer"}, TEXT),
        {"$ref": "#/$defs/none"},
        {"$ref": "#/oneOf/2"},
        {"$ref": "#/oneOf/no"},
        {"$ref": f"#/oneOf/{'9' * 5000}"},  # more digits than Python reads
    ],
)
def test_ways_that_may_overlap_are_left_as_they_are(other: Schema) -> None:
    schema = {"oneOf": [ONE, other]}
    assert with_exclusive_ways(schema) == schema


@pytest.mark.parametrize("ways", [5, [], {}, [5, True], [[]], [{"const": [1]}, {"const": [2]}]])
def test_what_is_no_list_of_such_ways_is_left_as_it_is(ways: object) -> None:
    for schema in (
        {"oneOf": ways},
        {"properties": {"oneOf": ways}},
        {"default": {"oneOf": ways}},
    ):
        assert with_exclusive_ways(schema) == schema


def test_beside_an_any_of_it_stays() -> None:
    schema = {"oneOf": [{"const": 1}, {"const": 2}], "anyOf": [{"const": 1}]}
    assert with_exclusive_ways(schema) == schema
