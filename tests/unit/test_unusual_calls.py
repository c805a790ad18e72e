"""Calls are read where models leave brackets out, or write more than their templates show."""

import pytest

from api.tools.dialects.known import DIALECTS
from tests.fakes.tools import Read, read_cut
from tests.unit.test_tool_parsers import CLOCK, PARIS, WEATHER

ONE = f'{{"name": "weather", "arguments": {PARIS}}}'
OTHER = '{"name": "clock", "arguments": {}}'
LISTED = {
    "nemotron": ("<TOOLCALL>", "</TOOLCALL>"),
    "apriel": ("<tool_calls>", "</tool_calls>"),
    "cohere": ("<|START_ACTION|>", "<|END_ACTION|>"),
}
FUNCTIONS = (
    "<function=weather>\n<parameter=city>Paris</parameter>\n</function>",
    "<function=clock>\n</function>",
)
TAGS = {"seed_oss": "seed:tool_call", "qwen3_coder": "tool_call"}


@pytest.mark.parametrize("name", LISTED)
@pytest.mark.parametrize("form", ["%s, %s", "[%s, %s", "%s,%s]", " [ %s , %s ] "])
def test_a_list_of_calls_may_lack_brackets(name: str, form: str) -> None:
    opens, closes = LISTED[name]
    text = f"So: {opens}{form % (ONE, OTHER)}{closes} There."
    assert read_cut(DIALECTS[name].parser, text) == Read("So: There.", [WEATHER, CLOCK])


def test_a_list_without_brackets_ends_with_its_calls() -> None:
    parser = DIALECTS["granite"].parser
    text = f"<|tool_call|>{ONE} There."
    assert read_cut(parser, text) == Read(" There.", [WEATHER])
    for text in ("<|tool_call|>the sea", "<|tool_call|>[]", "<|tool_call|>[[", '{"a": 1}'):
        assert read_cut(parser, text) == Read(text, [])


@pytest.mark.parametrize("name", TAGS)
def test_several_functions_may_stand_in_one_pair_of_tags(name: str) -> None:
    opens, closes = f"<{TAGS[name]}>", f"</{TAGS[name]}>"
    for between in ("\n", ""):
        text = f"A{opens}\n{between.join(FUNCTIONS)}{between}{closes}B"
        assert read_cut(DIALECTS[name].parser, text) == Read("AB", [WEATHER, CLOCK])
    rest = "<b>bold</b>"
    text = f"{opens}{FUNCTIONS[1]}{rest}"
    assert read_cut(DIALECTS[name].parser, text) == Read(rest, [CLOCK])


@pytest.mark.parametrize(
    "call",
    [
        "weather [ARGS] %s",
        " weather\n[ARGS]%s",
        "weather %s",
        "weather [CALL_ID]123456789 [ARGS] %s",
    ],
)
def test_space_may_stand_around_marks_of_a_mistral(call: str) -> None:
    text = f"Yes.[TOOL_CALLS]{call % PARIS}[TOOL_CALLS]clock{{}}"
    assert read_cut(DIALECTS["mistral"].parser, text) == Read("Yes.", [WEATHER, CLOCK])


@pytest.mark.parametrize("text", ["the sea", "weather [1]", "weather  is {}", "a [ARGS]b"])
def test_words_behind_the_mark_of_a_mistral_are_content(text: str) -> None:
    marked = f"[TOOL_CALLS]{text}"
    assert read_cut(DIALECTS["mistral"].parser, marked) == Read(marked, [])


def test_commas_may_stand_between_the_calls_of_a_llama() -> None:
    parser = DIALECTS["llama3_json"].parser
    assert read_cut(parser, f"{ONE}, {OTHER}") == Read("", [WEATHER, CLOCK])
    assert read_cut(parser, f"{ONE},{OTHER} , yes") == Read(" , yes", [WEATHER, CLOCK])
    for text in ('{"a": 1}, {"name": "clock"}', f"[{ONE}]"):
        assert read_cut(parser, text) == Read(text, [])
