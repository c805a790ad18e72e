"""Numbers that doubles do not have: an answer keeps to them, or the schema is refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import GrammarRefused
from engine.grammars.numbers import LARGEST_LIMIT, with_exact_numbers
from engine.request import Grammar
from tests.unit.test_grammar_kinds import allows

INT64 = 2**63
LARGE = st.integers(-(2**65), 2**65) | st.integers(2**53 - 9, 2**53 + 9)


def schema(**rules: Any) -> Grammar:  # noqa: ANN401  JSON of any shape
    return Grammar("json_schema", json.dumps(rules))


@pytest.mark.parametrize("value", [2**53, -(2**53), 2**60, 10**18, -(10**20), 10**22, 1e16])
@pytest.mark.parametrize("rest", [{}, {"type": "number"}])
def test_a_large_value_is_written_as_it_is(value: float, rest: dict[str, Any]) -> None:
    assert allows(schema(enum=[value], **rest), str(int(value)))
    assert allows(schema(const={"a": [value]}), f'{{"a":[{int(value)}]}}')


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("const", 2**53 + 1),
        ("const", -INT64),
        ("const", 2**64),
        ("const", [{"a": 1234567890123456789}]),
        ("enum", [1, 1234567890123456789]),
        ("const", 10**400),
        ("minimum", 2**53 + 1),
        ("minimum", 2**60),
        ("minimum", 10**19),
        ("minimum", 1e19),
        ("maximum", 1e20),
        ("maximum", -INT64),
        ("maximum", INT64 - 2),
        ("exclusiveMinimum", 2**53),
        ("exclusiveMaximum", 10**16),
        ("multipleOf", 2**53 + 2),
    ],
)
def test_a_number_that_would_become_another_is_refused_by_its_name(
    key: str,
    value: Any,  # noqa: ANN401  JSON of any shape
) -> None:
    rules = {"properties": {"default": {"items": {key: value}}}}
    tag = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": rules}}
    for kind, source in (("json_schema", rules), ("structural_tag", tag)):
        with pytest.raises(GrammarRefused, match=f"JSON schema: {key} has -?[0-9.e+]*"):
            allows(Grammar(kind, json.dumps(source)), "")  # type: ignore[arg-type]
    with pytest.raises(GrammarRefused):
        with_exact_numbers({"$ref": "#/own/a", "own": {"a": {key: value}}})


def test_a_refusal_is_short() -> None:
    with pytest.raises(GrammarRefused, match=r"const has 10{39}…, which"):
        with_exact_numbers({"const": 10**4000})


@pytest.mark.parametrize("kind", ["integer", "number"])
@given(number=LARGE)
def test_the_limits_of_int64_hold(kind: str, number: int) -> None:
    limits = schema(type=kind, minimum=-INT64, maximum=INT64 - 1)
    assert allows(limits, str(number)) == (abs(number) <= LARGEST_LIMIT)
    for upper in ({"exclusiveMaximum": INT64}, {"maximum": 2**64 - 1}):
        assert allows(schema(type=kind, **upper), str(number)) == (number <= LARGEST_LIMIT)


@pytest.mark.parametrize("kind", ["integer", "number"])
@given(key=st.sampled_from(["minimum", "maximum", "const"]), limit=LARGE, near=LARGE)
def test_no_answer_is_outside_of_what_is_let_through(
    kind: str, key: str, limit: int, near: int
) -> None:
    """Except where llguidance itself refuses what it cannot write."""
    bounds: dict[str, int] = {} if key == "const" else {"minimum": -1, "maximum": 1}
    rules = bounds | {key: limit}
    least, most = rules.get("minimum", limit), rules.get("maximum", limit)
    for number in (near, limit - 1, limit + 1):
        try:
            allowed = allows(schema(type=kind, **rules), str(number))
        except (GrammarRefused, AssertionError):
            continue
        assert not allowed or least <= number <= most


def test_what_is_no_rule_may_have_any_number() -> None:
    plain = {
        "default": 2**64,
        "examples": [{"const": 2**64}],
        "properties": {"minimum": {"const": 1}, "const": {"maximum": 5}},
        "maxLength": 2**60,
        "minimum": True,
    }
    assert with_exact_numbers(plain) == plain
