"""Arguments in JSON are read where models write none, or an object within a string."""

import json

import pytest

from api.tools.dialects.known import DIALECTS
from tests.fakes.tools import Read, read_cut
from tests.unit.test_tool_parsers import CLOCK, PARIS, TRICKY, WEATHER

FORMS = {
    "hermes": "<tool_call>%s</tool_call>",
    "granite": "<|tool_call|>[%s]",
    "hunyuan_a13b": "<tool_calls>[%s]</tool_calls>",
    "internlm": "<|action_start|><|plugin|>%s<|action_end|>",
    "llama3_json": "%s",
}
TWICE = {
    "lfm2": "<|tool_call_start|>[weather(city=1, city=2)]<|tool_call_end|>",
    "gemma4": '<|tool_call>call:weather{city:1,<|"|>city<|"|>:2}<tool_call|>',
    "qwen3_coder": "<tool_call><function=weather><parameter=city>1</parameter>"
    "<parameter=city>2</parameter></function></tool_call>",
    "glm45": "<tool_call>weather<arg_key>city</arg_key><arg_value>1</arg_value>"
    "<arg_key>city</arg_key><arg_value>2</arg_value></tool_call>",
    "hermes": '<tool_call>{"name": "weather", "arguments": {"city": 1, "city": 2}}</tool_call>',
}
NO_OBJECTS = (
    *("[1]", "nil", "5", "true", '"x"', '"null"', '"{}}"', '"{"'),
    *("\"{'a': 1}\"", r'"{\"a\": }"'),
)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("none", ["null", '""', '" "', '"{}"'])
def test_a_call_without_arguments_may_say_so(name: str, none: str) -> None:
    for call in ('{"name": "clock", "arguments": %s}', '{"arguments": %s , "name": "clock"}'):
        assert read_cut(DIALECTS[name].parser, FORMS[name] % call % none) == Read("", [CLOCK])


@pytest.mark.parametrize("name", FORMS)
def test_an_object_within_a_string_is_the_arguments(name: str) -> None:
    for arguments in (PARIS, TRICKY):
        call = f'{{"name": "weather", "parameters": {json.dumps(f" {arguments}")}}}'
        found = read_cut(DIALECTS[name].parser, FORMS[name] % call)
        assert found == Read("", [(WEATHER[0], arguments, True)])


@pytest.mark.parametrize("other", NO_OBJECTS)
def test_what_is_no_object_is_no_arguments(other: str) -> None:
    parser = DIALECTS["hermes"].parser
    early = f'<tool_call>{{"arguments": {other}, "name": "clock"}}</tool_call>'
    assert read_cut(parser, early) == Read(early, [])
    late = f'<tool_call>{{"name": "clock", "arguments": {other}}}</tool_call>'
    [(name, arguments, whole)] = read_cut(parser, late).calls
    assert (name, arguments, whole) == ("clock", "", False)


@pytest.mark.parametrize(("name", "text"), TWICE.items())
def test_of_arguments_with_one_name_the_last_counts(name: str, text: str) -> None:
    found = read_cut(DIALECTS[name].parser, text)
    [(called, arguments, whole)] = found.calls
    assert (found.content, called, whole) == ("", "weather", True)
    assert int(json.loads(arguments)["city"]) == 2
