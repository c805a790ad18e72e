"""What no value fits is left out of strict calls, or refused, in every format as in JSON."""

from typing import Any

import pytest

from api.wire import WireError
from engine.errors import GrammarRefused
from engine.grammars.checking import GrammarChecker
from tests.fakes.tools import offered
from tests.unit.test_required_members import walk
from tests.unit.test_strict_calls import grammar_of, strict

NAMES = ("hermes", "glm45", "deepseek_v32", "lfm2", "gemma4")
COUNT, WORD, TRUTH = {"type": "integer"}, {"type": "string"}, {"type": "boolean"}
CLOSED = {"additionalProperties": False}
NOTHING: list[Any] = [
    {"allOf": [COUNT, TRUTH]},
    {"allOf": [{"enum": ["x"]}, {"enum": ["y"]}]},
    {"type": "string", "enum": [1, None]},
    {"anyOf": [COUNT, TRUTH], "const": "x"},
    {"type": "integer", "minimum": 3, "maximum": 1},
    {"type": "object", "minProperties": 2, "maxProperties": 1},
    {"type": "array", "minItems": 2, "maxItems": 1},
    {"$ref": "#/$defs/a", "type": "string"},
    {"type": "string", "anyOf": [{"type": "null"}]},
    {"anyOf": []},
    False,
]
OVERLAID: list[Any] = [
    {"anyOf": [{"enum": ["x", "z"]}], "enum": ["x", "y"]},
    {"enum": ["x", "y"], "oneOf": [COUNT, {"const": "x"}]},
]
BOUNDED = {"type": ["integer", "array"], "minimum": 3, "maximum": 4, "maxItems": 0}


def given(schema: Any, *needed: str) -> dict[str, Any]:  # noqa: ANN401  JSON of any shape
    members = {"properties": {"a": schema, "b": COUNT}, "required": ["b", *needed]}
    return {**members, **CLOSED, "$defs": {"a": COUNT}}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("schema", NOTHING)
def test_a_member_that_cannot_be_is_left_out(name: str, schema: object) -> None:
    for seed in range(4):
        assert walk(name, given(schema), seed).keys() == {"b"}


def test_a_required_member_that_cannot_be_is_refused() -> None:
    with GrammarChecker() as checker:
        for name in NAMES:
            for schema in NOTHING:
                tools = offered([strict("f", given(schema, "a"))])
                with pytest.raises((GrammarRefused, WireError)):
                    checker.check(grammar_of(name, "", tools))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("schema", OVERLAID)
def test_all_lists_of_a_value_are_kept_to(name: str, schema: object) -> None:
    assert {walk(name, given(schema, "a"), seed)["a"] for seed in range(4)} == {"x"}


@pytest.mark.parametrize("name", NAMES)
def test_bounds_of_numbers_are_kept_to_beside_other_types(name: str) -> None:
    found = [walk(name, given(BOUNDED, "a"), seed)["a"] for seed in range(8)]
    assert all(one in (3, 4, []) for one in found)


@pytest.mark.parametrize("name", NAMES)
def test_bounds_that_cross_are_refused_in_clear_words(name: str) -> None:
    crossed = {"minProperties": 2, "maxProperties": 1}
    with GrammarChecker() as checker:
        for one in (crossed, {**crossed, "properties": {"a": COUNT}}):
            with pytest.raises(GrammarRefused, match="minProperties > maxProperties"):
                checker.check(grammar_of(name, "", offered([strict("f", one)])))


@pytest.mark.parametrize("name", NAMES[1:])
def test_patterns_of_names_are_refused_unless_no_name_is_of_them(name: str) -> None:
    patterns = {"patternProperties": {"^x": COUNT}}
    for one in (patterns, {**patterns, "properties": {"xa": {}}}, {**patterns, **CLOSED}):
        with pytest.raises(WireError, match="patternProperties"):
            grammar_of(name, "", offered([strict("f", one)]))
    assert walk(name, {**given(COUNT, "a"), **patterns}, 0).keys() == {"a", "b"}


def of(**members: object) -> dict[str, Any]:
    return {"type": "object", "properties": members, "required": [*members], **CLOSED}


def test_the_ways_of_an_inner_one_of_have_to_exclude_each_other() -> None:
    apart = {"oneOf": [of(k={"const": "x"}, n=COUNT), of(k={"const": "y"}), WORD]}
    same = {"oneOf": [of(k=WORD), of(k={"const": "x"})]}
    one_list = {"oneOf": [WORD, {"enum": ["x"]}]}
    with GrammarChecker() as checker:
        checker.check(grammar_of("gemma4", "", offered([strict("f", given(apart, "a"))])))
        for schema in (same, one_list, {"oneOf": [COUNT, {"type": "number"}]}):
            tools = offered([strict("f", given(schema, "a"))])
            with pytest.raises(GrammarRefused, match="oneOf"):
                checker.check(grammar_of("gemma4", "", tools))
