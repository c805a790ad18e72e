"""Strict functions of models whose calls have no mark: an answer's beginning tells them."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from api.tools.calling import tool_calling_of
from api.tools.dialects.known import DIALECTS
from api.tools.strict import text_with_calls
from api.tools.tool_choice import ToolSettings, read_tools
from engine.request import Grammar
from tests.fakes.tools import WEATHER, Read, read, tool
from tests.unit.test_calls_beside_forms import fits, walked
from tests.unit.test_strict_functions import strict

USE: Any = read_tools([strict("weather", WEATHER), tool("clock")], None, None)
CALLS = {
    "llama3_json": '{{"name": "{}", "parameters": {}}}',
    "phi4_mini_json": 'functools[{{"name": "{}", "arguments": {}}}]',
}
ARGUMENTS = {"good": '{"city": "Paris"}', "bad": '{"city": 5}'}
PYTHON = {"good": 'weather(city="Paris")', "bad": "weather(city=5)"}
PYTHONIC = ("pythonic", "llama4_pythonic")
NAMES = (*CALLS, *PYTHONIC)
PIECES = [*'"()[]{} \n:,f<\\=5', "weather", "wea", "clock", "city", "functools"]
PIECES += ['"name"', '"parameters"', '"Paris"']
TEXTS = st.lists(st.sampled_from(PIECES), max_size=9).map("".join)


def grammar_of(name: str, use: ToolSettings = USE) -> Grammar:
    grammar = text_with_calls(use, DIALECTS[name], "")
    assert grammar
    return grammar


def read_by(name: str, text: str) -> Read:
    parser: Any = name
    return read(tool_calling_of(USE, parser, None, []).parser, [*text], USE.offered)


def call(name: str, which: str) -> str:
    if name in PYTHONIC:
        return f"[{PYTHON[which]}]"
    return CALLS[name].format("weather", ARGUMENTS[which])


@pytest.mark.parametrize("name", NAMES)
def test_a_call_fits_and_text_is_free(name: str) -> None:
    grammar = grammar_of(name)
    for text in ("", "Hi.", '{"a": 5}', "[1, 2]", "[weather]", '{"name": "Ada"}', "{", "\n\n"):
        assert fits(grammar, text), text
        assert not read_by(name, text).calls
    for before in ("", "\n\n"):
        assert fits(grammar, before + call(name, "good"))
        assert not fits(grammar, before + call(name, "bad"))
    assert [one[0] for one in read_by(name, call(name, "good")).calls] == ["weather"]


@pytest.mark.parametrize("name", NAMES)
@given(TEXTS)
@example('{"name":"weather","parameters":{"city": "Paris"}}')
@example('{"parameters": {"city": 5}, "name": "weather"}')
@example('\n{ "name" :"weather","parameters":{"city": 5}}')
@example('{"name": "weather", "parameters": {"city": 5}}')
@example("\n[ weather\n(city=5)]")
@example('{"id": "x", "name": "weather", "parameters": {}}')
@example('{"name": "weath\\u0065r", "parameters": {}}')
@example("[ weather (city=5)]")
@example('functools [{"name": "weather", "arguments": {}}]')
def test_what_is_read_as_no_call_may_be_said_and_what_is_one_fits(name: str, text: str) -> None:
    found, fitting = read_by(name, text), fits(grammar_of(name), text)
    if not found.calls:
        assert fitting or "functools[" in text
        return
    for called, arguments, whole in found.calls:
        if fitting:
            assert whole
            assert called != "weather" or isinstance(json.loads(arguments)["city"], str)


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_left_is_read_as_it_was_held(name: str, parallel: bool) -> None:
    grammar, most = grammar_of(name, replace(USE, parallel=parallel)), 0
    for seed in range(60):
        text = walked(grammar, seed)
        found = read_by(name, text)
        most = max(most, len(found.calls))
        assert all(whole for *_, whole in found.calls)
    assert (most > 1) <= parallel


def test_marks_that_other_calls_begin_with_do_not_come() -> None:
    for name, mark in (
        ("llama3_json", "<|python_tag|>"),
        ("llama4_pythonic", "<|python_start|>"),
    ):
        assert not fits(grammar_of(name), f"Hm {mark} x")
    assert fits(grammar_of("pythonic"), "Hm <|python_start|> x")


@pytest.mark.parametrize("name", NAMES)
def test_several_calls_come_where_they_may(name: str) -> None:
    one = call(name, "good")
    many = {"llama3_json": f"{one}; {one}"}.get(name, f"{one[:-1]}, {one.partition('[')[2]}")
    assert len(read_by(name, many).calls) == 2
    assert fits(grammar_of(name), many)
    assert not fits(grammar_of(name, replace(USE, parallel=False)), many)


def test_without_a_strict_function_calls_are_read_in_any_order() -> None:
    use: Any = read_tools([tool("weather", WEATHER)], None, None)
    text = '{"parameters": {}, "name": "weather"}'
    parser = tool_calling_of(use, "llama3_json", None, []).parser
    assert read(parser, [text], use.offered).calls == [("weather", "{}", True)]
    assert not read_by("llama3_json", text).calls
