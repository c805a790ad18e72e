"""Where only some tools may be called, calls of all others are content, in any dialect."""

import pytest

from api.tools.dialects.known import DIALECTS
from api.tools.parsing.output import Parser
from tests.fakes.tools import Call, Read, read
from tests.unit import (
    test_more_dialects,
    test_object_dialects,
    test_python_dialects,
    test_tool_dialects,
    test_tool_parsers,
)

PARIS = '{"city": "Paris"}'
WEATHER, CLOCK = ("weather", PARIS, True), ("clock", "{}", True)
EVERY = [
    *((parser, text) for parser, text, *_ in test_tool_parsers.CALLS),
    *((DIALECTS[name].parser, text) for name, text, *_ in test_tool_dialects.CALLS),
    *((DIALECTS[name].parser, text) for name, text, *_ in test_more_dialects.CALLS),
    *((DIALECTS[name].parser, text) for name, text, *_ in test_python_dialects.CALLS),
    *((DIALECTS[name].parser, text) for name, text, *_ in test_object_dialects.CALLS),
]
SECTION, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
KIMI = [
    f"<|tool_call_begin|>functions.{one}<|tool_call_argument_begin|>{said}<|tool_call_end|>"
    for one, said in (("weather:0", PARIS), ("clock:1", "{}"))
]
HERMES = [
    f'<tool_call>\n{{"name": "{one}", "arguments": {said}}}\n</tool_call>'
    for one, said in (("weather", PARIS), ("clock", "{}"))
]


@pytest.mark.parametrize(("parser", "text"), EVERY)
def test_a_call_that_is_not_allowed_is_content_to_the_last_letter(
    parser: Parser, text: str
) -> None:
    for pieces in ([text], text):
        assert read(parser, pieces, only=()) == Read(text, [])


@pytest.mark.parametrize(("parser", "text"), EVERY)
def test_where_all_that_is_called_is_allowed_nothing_changes(parser: Parser, text: str) -> None:
    whole = read(parser, [text])
    assert read(parser, [text], only=[name for name, *_ in whole.calls]) == whole


@pytest.mark.parametrize(
    ("name", "only", "text", "content", "calls"),
    [
        ("hermes", "clock", "\n".join(HERMES), HERMES[0], [CLOCK]),
        ("hermes", "weather", "\n".join(HERMES), HERMES[1], [WEATHER]),
        ("hermes", "new", HERMES[0], HERMES[0], []),
        ("kimi_k2", "clock", f"{SECTION}{''.join(KIMI)}{END}", SECTION + KIMI[0], [CLOCK]),
        ("kimi_k2", "weather", f"{SECTION}{''.join(KIMI)}{END}", KIMI[1], [WEATHER]),
        (
            "mistral",
            "weather",
            f'[TOOL_CALLS][{{"name": "weather", "arguments": {PARIS}}}, {{"name": "clock"}}]',
            ', {"name": "clock"}]',
            [WEATHER],
        ),
    ],
)
def test_what_is_allowed_is_called_beside_what_is_not(
    name: str, only: str, text: str, content: str, calls: list[Call]
) -> None:
    for pieces in ([text], text):
        found = read(DIALECTS[name].parser, pieces, only={only})
        assert (found.content.strip(), found.calls) == (content.strip(), calls)
