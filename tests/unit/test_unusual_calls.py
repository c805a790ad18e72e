"""Calls are read where models leave brackets out, or write more than their templates show."""

import pytest

from api.tools.dialects.invoke import WORD
from api.tools.dialects.known import DIALECTS
from tests.fakes.tools import Read, offered, read, read_cut, tool
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
    for text in ('{"a": 1}, {"name": "clock"}', f"[[{ONE}]]"):
        assert read_cut(parser, text) == Read(text, [])


def test_the_calls_of_a_llama_may_be_a_list() -> None:
    parser = DIALECTS["llama3_json"].parser
    named = ONE.replace("arguments", "parameters")
    for text in (f"[{named}, {OTHER}]", f" [ {named} ,\n{OTHER} ]\n"):
        assert read_cut(parser, text) == Read("", [WEATHER, CLOCK])
    assert read_cut(parser, f"<|python_tag|>[{named}] There.") == Read(" There.", [WEATHER])
    for text in ('[{"name": "sea"}]', "[]", "[1, 2]", "[weather]"):
        assert read_cut(parser, text) == Read(text, [])


WORDS = {
    "minimax_m2": ("", "minimax:tool_call"),
    "deepseek_v32": (WORD, f"{WORD}function_calls"),
}
KIMI = "<|tool_calls_section_begin|>%s<|tool_calls_section_end|>"
KIMI_CALL = "<|tool_call_begin|>%s<|tool_call_argument_begin|>%s<|tool_call_end|>"


@pytest.mark.parametrize("number", ["%d", "call0000%d", " %d "])
def test_a_number_alone_calls_the_function_that_takes_the_arguments(number: str) -> None:
    parser = DIALECTS["kimi_k2"].parser
    calls = KIMI_CALL % (number % 3, PARIS) + KIMI_CALL % (number % 4, "{}")
    one = KIMI % (KIMI_CALL % (number % 3, PARIS))
    assert read_cut(parser, f"So. {one}There.") == Read("So.There.", [WEATHER])
    for other in ('{"town": "Paris"}', '{"city": '):
        text = KIMI % (KIMI_CALL % (number % 3, other))
        assert read_cut(parser, text) == Read(text, [])
    assert read_cut(parser, KIMI % calls) == Read("", [WEATHER, CLOCK])


def test_one_of_two_functions_that_take_the_same_is_not_guessed() -> None:
    same = offered([tool(name, {"properties": {"city": {}}}) for name in ("sea", "sky")])
    text = KIMI % (KIMI_CALL % ("3", PARIS))
    assert read(DIALECTS["kimi_k2"].parser, [text], same) == Read(text, [])


@pytest.mark.parametrize("name", ["minimax_m2", "deepseek_v32"])
def test_names_may_stand_in_single_quotes(name: str) -> None:
    word, section = WORDS[name]
    kind = " string='true'" if word else ""
    argument = f"<{word}parameter name='city'{kind}>Paris</{word}parameter>"
    calls = f"<{word}invoke name='weather'>{argument}</{word}invoke><{word}invoke name='clock'>"
    text = f"So.<{section}>{calls}</{word}invoke></{section}>"
    for written in (text, text.replace("'", '"'), text.replace("='city'", '="city"')):
        assert read_cut(DIALECTS[name].parser, written) == Read("So.", [WEATHER, CLOCK])
    for odd in (text.replace("'weather'", "weather"), text.replace("'weather'", "'weather\"")):
        assert not read_cut(DIALECTS[name].parser, odd).content.endswith("So.")
