"""What a schema says about an object as a whole holds in calls that are not JSON, too."""

import json
from typing import Any

import pytest

from api.tools.dialects.known import DIALECTS
from api.wire import WireError
from engine.errors import GrammarRefused
from engine.grammars.checking import GrammarChecker
from tests.fakes.call_starts import start_of
from tests.fakes.tools import offered, read
from tests.unit.test_strict_calls import grammar_of, strict, walked

NAMES = ("hermes", "glm45", "qwen3_coder", "lfm2", "gemma4")
COUNT = {"type": "integer"}
TWO = {"properties": {"a": COUNT, "b": COUNT}}
WRITTEN = [
    ({"properties": {"a": COUNT}, "required": ["b"], "additionalProperties": COUNT}, {"b"}),
    ({"required": ["a", "b"], "additionalProperties": COUNT}, {"a", "b"}),
    ({**TWO, "required": ["a"], "minProperties": 1}, {"a"}),
    ({**TWO, "required": ["a"], "maxProperties": 2}, {"a"}),
]
COUNTS = "min/maxProperties only supported when all keys"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({**TWO, "minProperties": 1}, COUNTS),
    ({**TWO, "minProperties": 2, "additionalProperties": False}, COUNTS),
    ({**TWO, "maxProperties": 1}, COUNTS),
    ({**TWO, "required": ["c"], "additionalProperties": False}, "'c' is unsatisfiable"),
    ({**TWO, "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    ({**TWO, "dependentSchemas": {"a": {"required": ["b"]}}}, "dependentSchemas"),
    ({"propertyNames": {"enum": ["a"]}}, "propertyNames"),
]


def walk(name: str, schema: dict[str, Any], seed: int) -> dict[str, Any]:
    tools = offered([strict("f", schema)])
    grammar = grammar_of(name, "", tools, parallel=False)
    text = walked(grammar, start_of(name, ""), seed)
    [(_, arguments, whole)] = read(DIALECTS[name].parser, [text], tools).calls
    assert whole, text
    found: dict[str, Any] = json.loads(arguments)
    return found


@pytest.mark.parametrize("name", NAMES[1:])
@pytest.mark.parametrize(("schema", "needed"), WRITTEN)
def test_what_is_required_is_written(
    name: str, schema: dict[str, Any], needed: set[str]
) -> None:
    for seed in range(3):
        assert walk(name, schema, seed).keys() >= needed


@pytest.mark.parametrize("name", ["lfm2", "gemma4"])
def test_an_open_object_has_as_many_members_as_it_must(name: str) -> None:
    number = {"minProperties": 2, "maxProperties": 3, "additionalProperties": {"const": 1}}
    for seed in range(3):
        assert 2 <= len(walk(name, number, seed)) <= 3


ONE_OF = {"properties": {"a": COUNT, "b": COUNT, "c": COUNT}, "additionalProperties": False}


@pytest.mark.parametrize("name", NAMES[1:])
@pytest.mark.parametrize(
    ("counted", "fits"),
    [
        ({"minProperties": 1}, range(1, 4)),
        ({"maxProperties": 1}, range(2)),
        ({"minProperties": 1, "maxProperties": 1}, range(1, 2)),
        ({"minProperties": 2, "required": ["b"]}, range(2, 4)),
        ({"maxProperties": 2, "required": ["b"]}, range(1, 3)),
    ],
)
def test_counts_that_json_keeps_to_are_kept_to_in_all_forms(
    name: str, counted: dict[str, Any], fits: range
) -> None:
    seen = {frozenset(walk(name, {**ONE_OF, **counted}, seed)) for seed in range(6)}
    assert {*map(len, seen)} <= {*fits}
    assert len(seen) > 1
    assert all(one.issuperset(counted.get("required", ())) for one in seen)


@pytest.mark.parametrize("name", NAMES[1:])
def test_counts_within_several_ways_count_as_ways(name: str) -> None:
    """Or a small schema becomes thousands of ways, and takes a second to be found too long."""
    many = {"properties": {f"p{number}": COUNT for number in range(40)}, "minProperties": 1}
    closed = {**many, "additionalProperties": False}
    grammar_of(name, "", offered([strict("f", closed)]))
    twice = {**closed, "anyOf": [{"title": "one"}, {"title": "two"}]}
    with pytest.raises(WireError, match="grammar of over"):
        grammar_of(name, "", offered([strict("f", twice)]))


@pytest.mark.parametrize("name", NAMES[1:])
def test_members_without_names_beside_others_are_refused(name: str) -> None:
    asked = {"properties": {"a": COUNT}, "required": ["a"], "minProperties": 2}
    with pytest.raises(WireError, match="minProperties is higher"):
        grammar_of(name, "", offered([strict("f", asked)]))


@pytest.mark.parametrize("name", NAMES[1:])
def test_what_is_no_name_is_not_required(name: str) -> None:
    odd = {"properties": {"a": COUNT}, "required": ["a", [], 1], "additionalProperties": False}
    assert walk(name, odd, 0).keys() == {"a"}


@pytest.mark.parametrize("names", [True, {}, {"type": "string", "description": "a city"}])
def test_names_of_any_form_are_no_reason_to_refuse(names: object) -> None:
    record = {"propertyNames": names, "additionalProperties": COUNT}
    with GrammarChecker() as checker:
        for name in NAMES:
            for schema in (record, {"properties": {"a": {"type": "object", **record}}}):
                checker.check(grammar_of(name, "", offered([strict("f", schema)])))


def test_what_is_refused_in_json_is_refused_in_all_forms() -> None:
    with GrammarChecker() as checker:
        for schema, why in REFUSED:
            for name in NAMES:
                with pytest.raises(GrammarRefused, match=why):
                    checker.check(grammar_of(name, "", offered([strict("f", schema)])))
