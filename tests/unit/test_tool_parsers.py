"""Calls are found in answers as models write them, however cut; nothing else is lost."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.tools.dialects.known import DIALECTS
from api.tools.forced import named_arguments, required_calls
from api.tools.parsing.output import CallArguments, CallStarted, ContentText, Parser
from api.tools.parsing.reader import CallReader
from tests.fakes.tools import Call, Read, cut, offered, read, tool

HERMES, LLAMA = DIALECTS["hermes"].parser, DIALECTS["llama3_json"].parser
MISTRAL, CODER = DIALECTS["mistral"].parser, DIALECTS["qwen3_coder"].parser
HARMONY = DIALECTS["openai"].parser
TO = "<|channel|>commentary to=functions."
JSON = " <|constrain|>json<|message|>"
PARSERS = {
    **{name: dialect.parser for name, dialect in DIALECTS.items()},
    "required": required_calls,
    "named": named_arguments("weather"),
}
PARIS = '{"city": "Paris"}'
TRICKY = r'{"city": "}{]\",:</tool_call>[TOOL_CALLS] \u00e9\\", "days": [-1.5e3, {"a": null}]}'
WEATHER, CLOCK = ("weather", PARIS, True), ("clock", "{}", True)
CALLS: list[tuple[Parser, str, str, list[Call]]] = [
    (
        HERMES,
        f'<tool_call>\n{{"name": "weather", "arguments": {PARIS}}}\n</tool_call>',
        "",
        [WEATHER],
    ),
    (HERMES, f'<tool_call>{{"arguments":{PARIS},"name":"weather"}}</tool_call>', "", [WEATHER]),
    (
        HERMES,
        f'<tool_call>{{"name": "weather", "arguments": {TRICKY}}}',
        "",
        [("weather", TRICKY, True)],
    ),
    (
        HERMES,
        f'One.\n<tool_call>\n{{"name": "weather", "arguments": {PARIS}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "clock"}\n</tool_call>\n Two.\n',
        "One.\n Two.\n",
        [WEATHER, CLOCK],
    ),
    (
        HERMES,
        '<tool_call>{"id": "7", "type": "function", "name": "new"}</tool_call>\n',
        "",
        [("new", "{}", True)],
    ),
    (HERMES, '<tool_call><tool_call>{"name": "clock"}', "<tool_call>", [CLOCK]),
    (HERMES, '<tool_call>{"name": "clock"}\n<tool_call>{"name": "clock"}', "", [CLOCK, CLOCK]),
    (LLAMA, f'{{"name": "weather", "parameters": {PARIS}}}', "", [WEATHER]),
    (LLAMA, f'\n<|python_tag|>{{"name": "weather", "parameters": {PARIS}}}', "", [WEATHER]),
    (
        LLAMA,
        '{"name": "clock", "parameters": {}}; '
        f'{{"type": "function", "name": "weather", "parameters": {PARIS}}}',
        "",
        [CLOCK, WEATHER],
    ),
    (LLAMA, 'Wait.<|python_tag|>{"name": "clock"}', "Wait.", [CLOCK]),
    (
        MISTRAL,
        f'[TOOL_CALLS] [{{"name": "weather", "arguments": {PARIS}}}, {{"name": "clock"}}]',
        "",
        [WEATHER, CLOCK],
    ),
    (
        MISTRAL,
        f"Well. [TOOL_CALLS]weather[ARGS]{PARIS}[TOOL_CALLS]clock{{}}",
        "Well.",
        [WEATHER, CLOCK],
    ),
    (MISTRAL, f"[TOOL_CALLS]weather[CALL_ID]a1b2c3d4e[ARGS] {PARIS}", "", [WEATHER]),
    (HARMONY, f"{TO}weather<|message|>{PARIS}", "", [WEATHER]),
    (HARMONY, f"{TO}weather{JSON} {TRICKY}", "", [("weather", TRICKY, True)]),
    (
        HARMONY,
        f"I look.{TO}weather<|message|>{PARIS}{TO}clock<|message|>{{}}",
        "I look.",
        [WEATHER, CLOCK],
    ),
    (HARMONY, f"{TO}<|message|>{PARIS}", f"{TO}<|message|>{PARIS}", []),
    (
        CODER,
        "So:\n<tool_call>\n<function=weather>\n<parameter=city>\n12 <b>\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        "So:",
        [("weather", '{"city": "12 <b>", "days": 3}', True)],
    ),
    (CODER, "<tool_call>\n<function=clock>\n</function>\n</tool_call>", "", [CLOCK]),
    (
        CODER,
        "<tool_call><function=new><parameter=a>[1, x]</parameter>"
        "<parameter=b>[1]</parameter></function>",
        "",
        [("new", '{"a": "[1, x]", "b": [1]}', True)],
    ),
    (
        required_calls,
        f'[{{"name": "weather", "parameters": {PARIS}}},\n'
        ' {"name": "clock", "parameters": {}}]\n',
        "",
        [WEATHER, CLOCK],
    ),
    (named_arguments("weather"), f" {PARIS}\n", "", [WEATHER]),
]
NO_CALLS: list[tuple[Parser, str]] = [
    (HERMES, "no <tool> at all, and {} <"),
    (HERMES, "\n\n"),
    (HERMES, "<tool_call>"),
    (HERMES, "<tool_call>\n{'name': 'weather'}\n</tool_call>"),
    (HERMES, '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
    (HERMES, '<tool_call>{"name": 5}</tool_call>'),
    (HERMES, '<tool_call>{"arguments": {"city": 01}, "name": "weather"}</tool_call>'),
    (HERMES, '<tool_call>{"arguments": [1], "name": "weather"}</tool_call>'),
    (HERMES, '<tool_call>{"arguments": {}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "\\ud800"}</tool_call>'),
    (HERMES, '<tool_call>{"answer": 42}</tool_call>'),
    (HERMES, '<tool_call>{"arguments": {"city": "a\nb"}, "name": "weather"}</tool_call>'),
    (LLAMA, '{"answer": 42}'),
    (LLAMA, '{"name": "unheard", "parameters": {}}'),
    (LLAMA, 'It is {"name": "clock", "parameters": {}}'),
    (MISTRAL, "[TOOL_CALLS] []"),
    (MISTRAL, "[TOOL_CALLS] weather is nice"),
    (MISTRAL, "[TOOL_CALLS]weather[ARG]{}"),
    (CODER, '<tool_call>{"name": "clock"}</tool_call>'),
    (CODER, "<tool_call><function=></function></tool_call>"),
    (required_calls, "Sorry."),
    (required_calls, "[]"),
    (named_arguments("weather"), "Sorry."),
]
BROKEN: list[tuple[Parser, str, str, list[Call]]] = [
    (
        HERMES,
        f'<tool_call>{{"name": "weather", "arguments": {PARIS[:9]}',
        "",
        [("weather", PARIS[:9], False)],
    ),
    (
        HERMES,
        '<tool_call>{"name": "weather", "arguments": {"city": oh no',
        "oh no",
        [("weather", '{"city": ', False)],
    ),
    (
        HERMES,
        '<tool_call>{"name": "weather", "arguments": {"a": ]<tool_call>{"name": "clock"}',
        "]",
        [("weather", '{"a": ', False), CLOCK],
    ),
    (
        required_calls,
        f'[{{"name": "weather", "parameters": {PARIS}}}, {{"name": "clo',
        ', {"name": "clo',
        [WEATHER],
    ),
    (named_arguments("weather"), PARIS[:-1], "", [("weather", PARIS[:-1], False)]),
    (
        CODER,
        "<tool_call><function=weather><parameter=city>Pa",
        "",
        [("weather", '{"city": "Pa', False)],
    ),
]


@pytest.mark.parametrize(("parser", "text", "content", "calls"), [*CALLS, *BROKEN])
@given(data=st.data())
def test_calls_are_read_however_the_answer_is_cut(
    data: st.DataObject, parser: Parser, text: str, content: str, calls: list[Call]
) -> None:
    assert read(parser, [text]) == Read(content, calls)
    assert read(parser, data.draw(cut(text))) == Read(content, calls)
    for _, arguments, whole in calls:
        assert not whole or isinstance(json.loads(arguments), dict)


@pytest.mark.parametrize(("parser", "text"), NO_CALLS)
@given(data=st.data())
def test_what_is_no_call_is_content_to_the_last_letter(
    data: st.DataObject, parser: Parser, text: str
) -> None:
    assert read(parser, data.draw(cut(text))) == Read(text, [])


PARTS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<tool", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>"),
        *('{"name": ', '"weather"', ', "arguments": ', ', "parameters": ', PARIS, TRICKY, "}"),
        *(
            "<function=clock>",
            "</function>",
            "<parameter=a>",
            "</parameter>",
            "{",
            "[",
            "]",
            ",",
        ),
        *("\n", " ", '"', "\\", "1", "x", ";", "é"),
    ]
)


@pytest.mark.parametrize("name", PARSERS)
@given(text=st.lists(PARTS, max_size=14).map("".join), data=st.data())
def test_anything_at_all_is_read_alike_whole_and_in_pieces(
    name: str, text: str, data: st.DataObject
) -> None:
    parser = PARSERS[name]
    whole = read(parser, [text])
    assert read(parser, [*text]) == whole
    assert read(parser, data.draw(cut(text))) == whole
    for _, arguments, is_whole in whole.calls:
        assert not is_whole or isinstance(json.loads(arguments), dict)
    if not whole.calls:
        assert whole.content == text


@pytest.mark.parametrize("name", ["hermes", "mistral", "llama3_json"])
def test_a_schema_that_says_nothing_of_a_value_changes_nothing(name: str) -> None:
    odd = offered([tool("clock", {"properties": {"a": True}})])
    assert read(PARSERS[name], ["x"], odd) == Read("x", [])
    text = "<tool_call><function=clock><parameter=a>1</parameter></function>"
    assert read(CODER, [text], odd).calls == [("clock", '{"a": 1}', True)]


def test_arguments_are_said_as_they_come() -> None:
    reader = CallReader(HERMES, offered())
    assert list(reader.read("Hm. <tool")) == [ContentText("Hm.")]
    assert list(reader.read('_call>{"name": "wea')) == []
    assert list(reader.read('ther", "arg')) == [CallStarted("weather")]
    assert list(reader.read('uments": {"city": "Pa')) == [CallArguments('{"city": "Pa')]


@given(
    value=st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(), one, max_size=3),
        max_leaves=8,
    ),
    indent=st.sampled_from([None, 1]),
    ascii_=st.booleans(),
)
def test_all_json_is_taken_as_arguments(
    value: object, indent: int | None, ascii_: bool
) -> None:
    text = json.dumps({"a": value}, indent=indent, ensure_ascii=ascii_)
    assert read(named_arguments("weather"), [text]) == Read("", [("weather", text, True)])


@given(text=st.text('{}[]",:\\ut1e-+.n \n', max_size=12).map(lambda one: "{" + one))
def test_what_is_not_json_is_never_a_whole_call(text: str) -> None:
    found = read(named_arguments("weather"), [text])
    for _, arguments, whole in found.calls:
        try:
            json.loads(arguments)
        except ValueError:
            assert not whole
        else:
            assert whole
