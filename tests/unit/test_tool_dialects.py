"""Calls of GLM, DeepSeek and Kimi are found in answers, cut at every place; nothing is lost."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.tools.dialects.deepseek import CALL, CLOSES, END, OPENS, SEPARATOR
from api.tools.dialects.deepseek import MARKERS as DEEPSEEK_MARKERS
from api.tools.dialects.glm import MARKERS as GLM_MARKERS
from api.tools.dialects.kimi import MARKERS as KIMI_MARKERS
from api.tools.dialects.known import DIALECTS
from api.tools.parsing.output import CallArguments, CallEnded, CallStarted, ContentText
from api.tools.parsing.reader import CallReader
from tests.fakes.tools import Call, Read, cut, offered, put_together, read, tool

PARIS = '{"city": "Paris"}'
TRICKY = json.dumps({"city": f'}}]"\\{CLOSES}{END}</tool_call><|tool_call_end|>```\n'})
WEATHER, CLOCK = ("weather", PARIS, True), ("clock", "{}", True)
CITY = "<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
V3, V31, KIMI, GLM = "deepseek_v3", "deepseek_v31", "kimi_k2", "glm45"


def fenced(name: str, arguments: str) -> str:
    """A call as DeepSeek V3 has it."""
    return f"{CALL}function{SEPARATOR}{name}\n```json\n{arguments}\n```{END}"


def plain(name: str, arguments: str) -> str:
    """A call as DeepSeek V3.1 has it."""
    return f"{CALL}{name}{SEPARATOR}{arguments}{END}"


def kimi(own: str, arguments: str) -> str:
    """A call as Kimi K2 has it."""
    return f"<|tool_call_begin|>{own}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


def section(*calls: str) -> str:
    return f"<|tool_calls_section_begin|>{''.join(calls)}<|tool_calls_section_end|>"


CALLS: list[tuple[str, str, str, list[Call]]] = [
    (GLM, f"<tool_call>weather\n{CITY}</tool_call>", "", [WEATHER]),
    ("glm47", f"<tool_call>weather{CITY.replace(chr(10), '')}</tool_call>", "", [WEATHER]),
    (GLM, "<tool_call>clock\n</tool_call>", "", [CLOCK]),
    ("glm47", "\n<tool_call>clock</tool_call>", "", [CLOCK]),
    (
        GLM,
        f"So:\n<tool_call>weather\n{CITY}</tool_call>\n<tool_call>clock</tool_call>\nDone.",
        "So:\nDone.",
        [WEATHER, CLOCK],
    ),
    (
        GLM,
        '<tool_call>weather<arg_key>city</arg_key><arg_value>\n 12 </arg_valu"\\\t</arg_key>'
        "<tool_call>é</arg_value><arg_key>days</arg_key><arg_value> 3 </arg_value></tool_call>",
        "",
        [
            (
                "weather",
                r'{"city": "\n 12 </arg_valu\"\\\t</arg_key><tool_call>é", "days": 3}',
                True,
            )
        ],
    ),
    (
        GLM,
        "<tool_call>new<arg_key>a</arg_key><arg_value>[1, x]</arg_value>"
        '<arg_key> b </arg_key><arg_value>{"c": [null]}</arg_value></tool_call>',
        "",
        [("new", '{"a": "[1, x]", "b": {"c": [null]}}', True)],
    ),
    (GLM, f"<tool_call><tool_call>weather{CITY}</tool_call>", "<tool_call>", [WEATHER]),
    (V3, f"{OPENS}{fenced('weather', PARIS)}{CLOSES}", "", [WEATHER]),
    (
        V3,
        f"I look.{OPENS}{fenced('weather', PARIS)}\n{fenced('clock', '{}')}{CLOSES}\nSo.",
        "I look.\nSo.",
        [WEATHER, CLOCK],
    ),
    (V3, f"{OPENS}{fenced('weather', TRICKY)}", "", [("weather", TRICKY, True)]),
    (V31, f"{OPENS}{plain('weather', PARIS)}{CLOSES}", "", [WEATHER]),
    (
        V31,
        f"A\n\n{OPENS}{plain('weather', PARIS)}{plain('clock', '{}')}{CLOSES}B"
        f"{OPENS}\n{plain('new', TRICKY)}\n{CLOSES}",
        "AB",
        [WEATHER, CLOCK, ("new", TRICKY, True)],
    ),
    (V31, f"{OPENS}{plain('clock', '{}')}{OPENS}{plain('clock', '{}')}", "", [CLOCK, CLOCK]),
    (V31, f"{OPENS}{OPENS}{plain('clock', '{}')}{CLOSES}", OPENS, [CLOCK]),
    (KIMI, section(kimi("functions.weather:0", PARIS)), "", [WEATHER]),
    (
        KIMI,
        f"Hm. {section(kimi('functions.weather:3', PARIS), kimi('clock:4', '{}'))} So.",
        "Hm. So.",
        [WEATHER, CLOCK],
    ),
    (
        KIMI,
        section(f"\n{kimi(f'{chr(10)}clock:12{chr(10)}', f' {TRICKY} ')}\n"),
        "",
        [("clock", TRICKY, True)],
    ),
    (KIMI, section(kimi("clock:0", ""), kimi("weather:1", PARIS)), "", [CLOCK, WEATHER]),
    (
        V3,
        f"{OPENS}{fenced('clock', '')}{fenced('weather', PARIS)}{CLOSES}",
        "",
        [CLOCK, WEATHER],
    ),
    (V31, f"{OPENS}{plain('clock', ' ')}{CLOSES}", "", [CLOCK]),
    (
        KIMI,
        f"A{section(kimi('clock:0', '{}')).replace('calls_section', 'call_section')}B"
        f"<|tool_call_section_begin|>{kimi('clock:1', '{}')}<|tool_calls_section_end|>C",
        "ABC",
        [CLOCK, CLOCK],
    ),
]
"""A dialect, an answer, and what of it is content and what are calls."""
BROKEN: list[tuple[str, str, str, list[Call]]] = [
    (GLM, "<tool_call>weather<arg_key>city", "city", [("weather", "", False)]),
    (
        GLM,
        "<tool_call>weather<arg_key>city</arg_key><arg_value>Pa</arg_v",
        "</arg_v",
        [("weather", '{"city": "Pa', False)],
    ),
    (
        GLM,
        "<tool_call>weather<arg_key>days</arg_key><arg_value>3",
        "days</arg_key><arg_value>3",
        [("weather", "", False)],
    ),
    (
        GLM,
        f"<tool_call>weather{CITY}<b></tool_call><tool_call>clock</tool_call>",
        "\n<b></tool_call>",
        [("weather", PARIS[:-1], False), CLOCK],
    ),
    (
        V3,
        f"{OPENS}{fenced('weather', PARIS[:9])}{fenced('clock', '{}')}{CLOSES}",
        f"```{END}",
        [("weather", PARIS[:9] + "\n", False), CLOCK],
    ),
    (V3, f"{OPENS}{fenced('clock', '{}').removesuffix(END)}", "", [CLOCK]),
    (V3, f"{OPENS}{fenced('clock', '{}').removesuffix('`' + END)}", "\n``", [CLOCK]),
    (V31, f"{OPENS}{CALL}clock{SEPARATOR}{PARIS[:9]}", "", [("clock", PARIS[:9], False)]),
    (
        V31,
        f"{OPENS}{plain('new', '{}')}{plain('f', '[]')}{plain('clock', '{}')}{CLOSES}{CLOSES}",
        f"{plain('f', '[]')}{CLOSES}",
        [("new", "{}", True), CLOCK],
    ),
    (
        V31,
        f"{OPENS}{plain('clock', '{}')}{CALL}the sea{plain('clock', '{}')}{CLOSES}",
        f"{CALL}the sea",
        [CLOCK, CLOCK],
    ),
    (
        KIMI,
        section(kimi("clock:0", '{"a": 01}'), kimi("clock:1", "{}")),
        "}<|tool_call_end|>",
        [("clock", '{"a": 01', False), CLOCK],
    ),
]
NO_CALLS = [
    (GLM, "<tool_call>"),
    (GLM, "<tool_call>the sea</tool_call>"),
    (GLM, "<tool_call></tool_call>"),
    (GLM, '<tool_call>{"name": "clock"}</tool_call>'),
    (GLM, "<tool_call>clock<arg_value>1</arg_value></tool_call>"),
    (GLM, "clock<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"),
    (V3, f"{OPENS}{CLOSES}"),
    (V3, f"{OPENS}{plain('clock', '{}')}{CLOSES}"),
    (V3, fenced("clock", "{}")),
    (V31, f"{OPENS}the sea{CLOSES} and {END}"),
    (V31, f"{OPENS}{fenced('clock', '{}')}{CLOSES}"),
    (V31, f"{OPENS}{plain('', '{}')}{CLOSES}"),
    (KIMI, section()),
    (KIMI, section(kimi("functions.clock", "{}"))),
    (KIMI, section(kimi("functions.:0", "{}"))),
    (KIMI, section(kimi("functions.clock:a", "{}"))),
    (KIMI, kimi("functions.clock:0", "{}")),
    (KIMI, "<|tool_calls_section_begin|><|tool_call_begin|>functions.clock:0"),
]


def read_by(name: str, *pieces: str) -> Read:
    return read(DIALECTS[name].parser, pieces)


@pytest.mark.parametrize(("name", "text", "content", "calls"), [*CALLS, *BROKEN])
def test_calls_are_read_wherever_the_answer_is_cut(
    name: str, text: str, content: str, calls: list[Call]
) -> None:
    whole = Read(content, calls)
    assert read_by(name, text) == whole
    assert read_by(name, *text) == whole
    for place in range(len(text)):
        assert read_by(name, text[:place], text[place:]) == whole


@pytest.mark.parametrize(("name", "text"), NO_CALLS)
def test_what_is_no_call_is_content_to_the_last_letter(name: str, text: str) -> None:
    assert read_by(name, text) == Read(text, [])
    assert read_by(name, *text) == Read(text, [])


PARTS = [
    *(*DEEPSEEK_MARKERS, *KIMI_MARKERS, *GLM_MARKERS),
    *("weather", "clock", "function", "functions.clock:0", "city", "days", "the sea"),
    *(
        "```json\n",
        "\n```",
        PARIS,
        "{}",
        TRICKY,
        '{"a": ',
        "3",
        "<",
        OPENS[:7],
        "\n",
        " ",
        "é",
    ),
    *(fenced("clock", "{}"), plain("clock", "{}"), kimi("functions.clock:0", "{}"), CITY),
]


@pytest.mark.parametrize("name", [GLM, V3, V31, KIMI])
@given(text=st.lists(st.sampled_from(PARTS), max_size=14).map("".join), data=st.data())
def test_anything_at_all_is_read_alike_whole_and_in_pieces(
    name: str, text: str, data: st.DataObject
) -> None:
    whole = read_by(name, text)
    assert read_by(name, *text) == whole
    assert read_by(name, *data.draw(cut(text))) == whole
    for _, arguments, is_whole in whole.calls:
        assert not is_whole or isinstance(json.loads(arguments), dict)
    if not whole.calls:
        assert whole.content == text


@pytest.mark.parametrize(
    ("name", "form"),
    [
        (GLM, "<tool_call>f<arg_key>a</arg_key><arg_value>{}</arg_value></tool_call>"),
        ("qwen3_coder", "<tool_call><function=f><parameter=a>\n{}\n</parameter></function>"),
    ],
)
@given(text=st.text() | st.text('<>/\n\\"argvluepmt_é\x01', max_size=20))
def test_a_text_is_an_argument_as_it_stands(name: str, form: str, text: str) -> None:
    tools = offered([tool("f", {"properties": {"a": {"type": "string"}}})])
    found = read(DIALECTS[name].parser, [*form.format(text)], tools)
    if "</arg_value>" not in text and "</parameter>" not in text:
        [(_, arguments, whole)] = found.calls
        assert (json.loads(arguments), whole) == ({"a": text}, True)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        (GLM, "<tool_call>weather<arg_key>city</arg_key><arg_value>"),
        ("qwen3_coder", "<tool_call><function=weather><parameter=city>\n"),
    ],
)
def test_a_long_text_is_said_as_it_comes(name: str, form: str) -> None:
    reader = CallReader(DIALECTS[name].parser, offered())
    assert reader.read(form) == [CallStarted("weather"), CallArguments('{"city": "')]
    assert reader.read("Par") == [CallArguments("Par")]
    assert reader.read("is\n</") == [CallArguments("is" if name != GLM else r"is\n")]
    assert reader.read("b>") == [CallArguments("</b>" if name == GLM else r"\n</b>")]


def test_what_is_no_text_is_said_when_it_is_whole() -> None:
    reader = CallReader(DIALECTS[GLM].parser, offered())
    reader.read("<tool_call>weather<arg_key>days</arg_key><arg_value>3")
    assert reader.read("0</arg_value") == []
    assert reader.read("></tool_call>") == [CallArguments('{"days": 30}'), CallEnded()]


def test_json_is_said_as_it_comes() -> None:
    reader = CallReader(DIALECTS[KIMI].parser, offered())
    assert reader.read("Hm. <|tool_calls_sec") == [ContentText("Hm.")]
    assert reader.read("tion_begin|><|tool_call_begin|>functions.weather:0") == []
    said = reader.read('<|tool_call_argument_begin|>{"city": "Pa')
    assert said == [
        CallStarted("weather", "functions.weather:0"),
        CallArguments('{"city": "Pa'),
    ]
    assert put_together(said).calls == [("weather", '{"city": "Pa', False)]
