"""Formats that stand deep within each other, as the arguments of some functions do."""

import pytest

from engine.grammars.structural_tags import (
    ConstString,
    Either,
    Format,
    Optional,
    Sequential,
    structural_tag_of,
)
from engine.request import Grammar
from tests.fakes.tools import offered
from tests.unit.test_calls_beside_forms import fits, grammar_of
from tests.unit.test_grammar_kinds import claim
from tests.unit.test_strict_calls import grammar_of as strict_grammar_of
from tests.unit.test_strict_calls import strict

LEVELS = 60
CALL = "<|tool_call>call:f{a:%s}<tool_call|>"


def test_levels_are_no_limit() -> None:
    one: Format = ConstString("(")
    for _ in range(LEVELS):
        both = Sequential((ConstString('"('), one, ConstString(")")))
        one = Either((Optional(both), ConstString("x")))
    deep = LEVELS * '"(' + "(" + LEVELS * ")"
    claim(
        Grammar("structural_tag", structural_tag_of(one)),
        [deep, "", "x", '"(x)', '"("(x))'],
        [deep[:-1], deep + ")", '"(', '"((x)'],
    )


@pytest.mark.parametrize("schema", [{}, True, {"type": "array"}])
def test_a_gemma_may_leave_out_an_argument_of_any_form(schema: object) -> None:
    tools = offered([strict("f", {"type": "object", "properties": {"a": schema}})])
    for grammar in (grammar_of("gemma4", "", tools), strict_grammar_of("gemma4", "", tools)):
        assert fits(grammar, CALL % "[1,[true,[null]]]")
        assert fits(grammar, "<|tool_call>call:f{}<tool_call|>")
        assert not fits(grammar, CALL % "[1")
