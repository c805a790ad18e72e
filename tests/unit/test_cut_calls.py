"""An answer that is cut in a call shows nothing of the call's form as text."""

import json

import pytest

from api.tools.calling import ToolCalling
from api.tools.deltas import CalledFunction, ToolCall, join_deltas
from api.tools.dialects.deepseek import CALL, OPENS, SEPARATOR
from api.tools.dialects.dialect import long_id
from api.tools.dialects.known import DIALECTS
from api.tools.forced import named_arguments, required_calls
from api.tools.parsing.output import SPACE, Parser, partial_marker
from api.tools.tool_choice import ToolSettings
from engine.request import FinishReason
from tests.fakes.tools import Call, offered, read
from tests.unit.test_tool_dialects import CALLS as SECTIONED
from tests.unit.test_tool_parsers import CALLS, HARMONY, LLAMA

MARKED = [one for one in CALLS if one[0] not in (LLAMA, HARMONY)]
EVERY = [*MARKED, *((DIALECTS[name].parser, *rest) for name, *rest in SECTIONED)]
MARKS = [mark for dialect in DIALECTS.values() for mark in dialect.markers]
LENGTH, STOP = FinishReason.LENGTH, FinishReason.STOP


@pytest.mark.parametrize(("parser", "text", "content", "calls"), EVERY)
def test_what_is_shown_of_a_cut_answer_is_the_beginning_of_what_it_would_have_been(
    parser: Parser, text: str, content: str, calls: list[Call]
) -> None:
    """But for half a mark, which could as well be text."""
    for place in range(len(text)):
        found = read(parser, [text[:place]], cut=True)
        half = max((partial_marker(found.content, mark) for mark in MARKS), key=len)
        shown = found.content.removesuffix(half).rstrip(SPACE)
        assert content.startswith(shown), text[:place]
        for (name, arguments, _), (called, all_of_them, _) in zip(
            found.calls, calls, strict=False
        ):
            assert name == called
            assert all_of_them.startswith(arguments)


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        ("hermes", '<tool_call>\n{"name": "weather", "argu', ""),
        (
            "hermes",
            '<tool_call>\n{"name": "weather", "arguments": {"city": "Par',
            '{"city": "Par',
        ),
        ("glm45", "<tool_call>weather\n<arg_key>city", ""),
        (
            "glm45",
            "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>P</arg",
            '{"city": "P',
        ),
        ("qwen3_coder", "<tool_call>\n<function=weather>\n<param", ""),
        ("deepseek_v31", f"{OPENS}{CALL}weather{SEPARATOR}{{", "{"),
        ("mistral", '[TOOL_CALLS][{"name": "weather", "arguments"', ""),
        ("llama3_json", '{"name": "weather", "para', ""),
    ],
)
def test_a_call_with_a_name_is_told_as_far_as_it_came(
    name: str, text: str, arguments: str
) -> None:
    for finish, shown in ((LENGTH, ""), (STOP, None)):
        calling = ToolCalling(
            ToolSettings(offered(), "auto"), DIALECTS[name].parser, long_id, ()
        )
        teller = calling.new_stream()
        content, [call] = join_deltas(teller.read(text, finish))
        assert call == ToolCall(call.id, CalledFunction("weather", arguments))
        assert teller.finish_reason(finish) == finish
        if shown is not None:
            assert content == shown


@pytest.mark.parametrize(
    ("name", "begun"),
    [
        ("hermes", '\n{"na'),
        ("glm45", "wea"),
        ("kimi_k2", "<|tool_call_begin|>functions.wea"),
        ("mistral", "wea"),
        ("granite", '[{"arguments": {"a'),
    ],
)
def test_a_call_without_a_name_yet_is_not_shown(name: str, begun: str) -> None:
    parser, mark = DIALECTS[name].parser, DIALECTS[name].markers[0]
    assert read(parser, [f"So. {mark}"], cut=True).content == "So."
    assert read(parser, [f"So. {mark}{begun}"], cut=True).content == "So."
    assert read(parser, [f"So. {mark}{begun}"]).content == f"So. {mark}{begun}"
    assert read(parser, [f"So. {mark}#!? no"], cut=True).content.endswith("#!? no")


def test_json_that_is_no_call_yet_is_text_of_a_llama() -> None:
    for text in ('{"answer": 4', '{"name": "wea', "the sea"):
        assert read(LLAMA, [text], cut=True).content == text
    two = '{"name": "clock", "parameters": {}}; {"na'
    assert read(LLAMA, [two], cut=True).content == ""
    assert read(LLAMA, [two]).content == '; {"na'


def test_what_has_to_be_a_call_is_none_where_it_is_cut() -> None:
    call = {"name": "weather", "parameters": {"city": "Paris"}}
    text = json.dumps([call, call])
    for place in range(len(text)):
        assert read(required_calls, [text[:place]], cut=True).content == ""
    assert read(named_arguments("weather"), [" "], cut=True).content == ""
    assert read(required_calls, ["Sorry."], cut=True).content == "Sorry."


@pytest.mark.parametrize("call", ['{"name": "clock"}</tool_call>', '{"name": "clock"; '])
def test_half_a_mark_behind_a_call_is_text(call: str) -> None:
    text = f"<tool_call>{call}: is 4 <"
    assert read(DIALECTS["hermes"].parser, [text], cut=True).content.endswith("is 4 <")
