"""Parsers that are named, over HTTP: each mark a special token, and reasoning before calls."""

import re
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from api.reasoning.formats import ReasoningParser
from api.tools.dialects.known import ToolCallParser
from tests.fakes.http import Client
from tests.fakes.text import EOS, FakeDoor, says, served
from tests.fakes.tools import special
from tests.integration.test_call_dialects import played, said
from tests.integration.test_tool_calls import TWO, summary
from tests.unit import test_object_dialects, test_python_dialects

WHOLE = [
    (name, text, content.strip())
    for name, text, content, calls in (*test_object_dialects.CALLS, *test_python_dialects.CALLS)
    if [one[:2] for one in calls] == TWO
]
HERE, RESPONSE = "Here is my thought process:", "Here is my response:"
THOUGHTS: list[tuple[ReasoningParser, ToolCallParser, str]] = [
    ("ernie45", "ernie45", "Hm.\n</think>\n\n{}\n"),
    ("ernie45", "ernie45", "Hm.\n</think>\n\n<response>\n{}\n</response>\n"),
    ("granite", "granite-20b-fc", f"{HERE} Hm. {RESPONSE} {{}}"),
    ("hunyuan_a13b", "hunyuan_a13b", "<think>\nHm.\n</think>\n<answer>\n{}\n</answer>"),
    ("olmo3", "olmo3", "Hm.</think>{}"),
    ("olmo3", "pythonic", "Hm.</think>\n\n{}"),
    ("step3", "step3", "Hm.\n</think>\n{}"),
]


def door(answer: str, parser: ToolCallParser, reasoning: ReasoningParser = "none") -> Client:
    codec = special(*dict.fromkeys(re.findall(r"<[^<> ]{2,}>|\[TOOL_CALLS\]", answer)), end="")
    events = says([*codec.encode(answer), EOS])
    model = served(codec, context=10_000)
    told = replace(model, tool_call_parser=parser, reasoning_parser=reasoning)
    return Client(FakeDoor(partial(played, events)), told)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("parser", "answer", "content"), WHOLE)
async def test_calls_come_out_of_special_tokens(
    parser: ToolCallParser, answer: str, content: str, stream: bool
) -> None:
    found, calls, reason = summary(await said(door(answer, parser), stream))
    assert (found.strip(), calls, reason) == (content, TWO, "tool_calls")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("reasoning", "parser", "around"), THOUGHTS)
async def test_calls_come_behind_reasoning_and_out_of_marks_around_them(
    reasoning: ReasoningParser, parser: ToolCallParser, around: str, stream: bool
) -> None:
    answer, content = next(rest for name, *rest in WHOLE if name == parser)
    choice: Any = await said(door(around.format(answer), parser, reasoning), stream)
    assert summary(choice) == (content, TWO, "tool_calls")
    assert choice["message"]["reasoning"] == "Hm."
    plain: Any = await said(door(around.format("Yes."), parser, reasoning), stream)
    assert summary(plain)[0].strip() == "Yes."
    assert plain["message"]["reasoning"] == "Hm."
