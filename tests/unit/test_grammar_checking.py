"""The check at the door: quick, final, and never the end of anybody else."""

from collections.abc import Iterator
from time import monotonic

import pytest

from engine.errors import GrammarRefused
from engine.grammars.checking import DEADLINE_S, GrammarChecker, check_grammar
from engine.request import Grammar
from tests.fakes.hostile_grammars import ENDURED, REFUSED

SLACK_S = 2.0  # a busy machine
SLOW = Grammar("json_schema", '{"type": "integer", "multipleOf": 99999989}')
GOOD = Grammar("regex", "[a-z]+")


@pytest.fixture(scope="module")
def checker() -> Iterator[GrammarChecker]:
    with GrammarChecker() as one:
        one.check(Grammar("json_object"))
        yield one


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_served_is_refused_in_time(checker: GrammarChecker, name: str) -> None:
    began = monotonic()
    with pytest.raises(GrammarRefused) as refusal:
        checker.check(REFUSED[name])
    assert monotonic() - began < DEADLINE_S + SLACK_S
    said = str(refusal.value)
    assert 0 < len(said) < 500
    assert "\n" not in said


@pytest.mark.parametrize("name", ENDURED)
def test_what_looks_bad_takes_no_longer(checker: GrammarChecker, name: str) -> None:
    began = monotonic()
    checker.check(ENDURED[name])
    assert monotonic() - began < DEADLINE_S + SLACK_S


def test_a_check_goes_on_after_one_that_had_to_be_ended() -> None:
    with GrammarChecker(deadline_s=0.2) as checker:
        with pytest.raises(GrammarRefused, match="too long"):
            checker.check(SLOW)
        checker.check(GOOD)


def test_answers_are_remembered() -> None:
    with GrammarChecker(deadline_s=0.2) as checker:
        with pytest.raises(GrammarRefused) as first:
            checker.check(SLOW)
        began = monotonic()
        with pytest.raises(GrammarRefused) as second:
            checker.check(SLOW)
        assert monotonic() - began < 0.1
        assert str(first.value) == str(second.value)


def test_one_grammar_is_checked_without_a_checker() -> None:
    check_grammar(GOOD)
    with pytest.raises(GrammarRefused, match="regex"):
        check_grammar(Grammar("regex", "("))
