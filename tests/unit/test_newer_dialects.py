"""Calls of models of 2026 are found, however their answers are cut."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.reasoning.formats import REASONING_FORMATS, find_format
from api.tools.dialects.invoke import SPACED, WORD
from api.tools.dialects.kimi_elements import MARKERS, closing, opening
from api.tools.dialects.known import DIALECTS, find_dialect
from tests.fakes.tools import Call, Read, claims, cut, read_alike, read_cut

PARIS = '{"city": "Paris"}'
WEATHER, CLOCK = ("weather", PARIS, True), ("clock", "{}", True)
PREFIX, SUFFIX = "<|tools_prefix|>", "<|tools_suffix|>"
OBJECTS = f'{{"weather": {PARIS}}}, {{"clock": {{}}}}'
DSML, END_OF_DSML = f"<{SPACED}calls>", f"</{SPACED}calls>"


def invoked(name: str, *arguments: str) -> str:
    """A call as DeepSeek V4.1 has it."""
    inner = "".join(f"<{SPACED}parameter name={one}</{SPACED}parameter>\n" for one in arguments)
    return f'<{SPACED}invoke name="{name}">\n{inner}</{SPACED}invoke>\n'


TEXT, END_OF_TEXT = opening("response"), closing("response")
SECTION, END_OF_SECTION, END = opening("tools"), closing("tools"), closing("message")


def element(name: str, *arguments: str) -> str:
    """A call as Kimi K3 has it."""
    inner = "".join(f"<|open|>argument key={one}{closing('argument')}" for one in arguments)
    return f'<|open|>call tool="{name}" index="1"<|sep|>{inner}{closing("call")}'


def pair(key: str, value: str, word: str = "") -> str:
    """An argument as Hy4 has it."""
    key = f"<arg_key{word}>{key}</arg_key{word}>"
    return f"{key}<arg_value{word}>{value}</arg_value{word}>"


def hy4(*calls: str, word: str = "") -> str:
    inner = "".join(f"<tool_call{word}>{one}</tool_call{word}>" for one in calls)
    return f"<tool_calls{word}>{inner}</tool_calls{word}>"


PLACE = '"city" type="string"<|sep|>Paris'
CITY = '"city" string="true">Paris'
CALLS: list[tuple[str, str, str, list[Call]]] = [
    ("apertus", f"So: {PREFIX}[{OBJECTS}]{SUFFIX} Done.", "So: Done.", [WEATHER, CLOCK]),
    ("apertus", f"{PREFIX} [ {OBJECTS} ] \n{SUFFIX}", "", [WEATHER, CLOCK]),
    ("apertus", f"{PREFIX}[{OBJECTS}", "", [WEATHER, CLOCK]),
    ("apertus", f'{PREFIX}[{{"clock": null}}]{SUFFIX}', "", [CLOCK]),
    (
        "deepseek_v41",
        f"So:\n\n{DSML}\n{invoked('weather', CITY)}{invoked('clock')}{END_OF_DSML}",
        "So:",
        [WEATHER, CLOCK],
    ),
    (
        "deepseek_v41",
        DSML + invoked("f", '"a" string="false">[1]', '"b">x') + END_OF_DSML,
        "",
        [("f", '{"a": [1], "b": "x"}', True)],
    ),
    (
        "kimi_k3",
        f"{TEXT}So:{END_OF_TEXT}{SECTION}{element('weather', PLACE)}{element('clock')}"
        f"{END_OF_SECTION}{END}",
        "So:",
        [WEATHER, CLOCK],
    ),
    ("kimi_k3", f"So:{END_OF_TEXT} {END} Done.", "So: Done.", []),
    ("kimi_k3", f"{SECTION}\n{element('clock')}\n{END_OF_SECTION}", "", [CLOCK]),
    ("kimi_k3", f'{SECTION}<|open|>call tool="clock"<|sep|>{closing("call")}', "", [CLOCK]),
    (
        "kimi_k3",
        SECTION
        + element(
            "f &quot;&amp;quot;",
            '"a&quot;" type="number"<|sep|>1.5',
            '"b" type="object"<|sep|>{"c": [null]}',
            '"d" type="string"<|sep|>1 <|close|> "x"\n',
            '"e" type="null"<|sep|>null',
            '"f" type="number"<|sep|>none',
            '"g"<|sep|>x',
        )
        + END_OF_SECTION,
        "",
        [
            (
                'f "&quot;',
                r'{"a\"": 1.5, "b": {"c": [null]}, "d": "1 <|close|> \"x\"\n", "e": null, '
                '"f": "none", "g": "x"}',
                True,
            )
        ],
    ),
]
CALLS += [
    (
        "hy_v4",
        f"So: {hy4('weather' + pair('city', 'Paris'), 'clock')}",
        "So:",
        [WEATHER, CLOCK],
    ),
    (
        "hy_v4",
        hy4(f"\nf\n{pair('a', '[1]')}\n{pair('b', ' <b> ')}\n").replace("><t", ">\n<t"),
        "",
        [("f", '{"a": [1], "b": " <b> "}', True)],
    ),
]
BROKEN: list[tuple[str, str, str, list[Call]]] = [
    ("apertus", f"{PREFIX}[{OBJECTS}, 1]{SUFFIX}", f", 1]{SUFFIX}", [WEATHER, CLOCK]),
    ("apertus", f'{PREFIX}[{{"f": {{}}, "g": {{}}}}]', ', "g": {}}]', [("f", "{}", False)]),
]
NO_CALLS = [
    ("hy_v4", hy4()),
    ("hy_v4", hy4("")),
    ("hy_v4", hy4("a b")),
    ("hy_v4", hy4("clock", word=":6124c78e")),
    ("hy_v4", "<tool_call>clock</tool_call>"),
    *(
        ("kimi_k3", f"{SECTION}{inner}")
        for inner in ("", END_OF_SECTION, "<|open|>call<|sep|>")
    ),
    ("kimi_k3", element("clock")),
    ("kimi_k3", SECTION + element("clock").replace("index", "the index")),
    ("kimi_k3", f"{SECTION}{element('')}"),
    ("kimi_k3", f"{SECTION}<|open|>call tool=clock<|sep|>{closing('call')}"),
    *(("apertus", f"{PREFIX}{inner}{SUFFIX}") for inner in ("", "[]", "{}", '["f"]', "[{}]")),
    ("apertus", f'{PREFIX}[{{"": {{}}}}]{SUFFIX}'),
    ("apertus", f'{PREFIX}[{{"f": 1}}]{SUFFIX}'),
    ("deepseek_v41", f'{DSML}<{WORD}invoke name="clock"></{WORD}invoke>{END_OF_DSML}'),
    ("deepseek_v41", f"<{WORD}calls>{invoked('clock')}</{WORD}calls>"),
]
NAMES = sorted({name for name, *_ in CALLS})


@pytest.mark.parametrize(("name", "text", "content", "calls"), [*CALLS, *BROKEN])
def test_calls_are_read_wherever_the_answer_is_cut(
    name: str, text: str, content: str, calls: list[Call]
) -> None:
    found = read_cut(DIALECTS[name].parser, text)
    assert (found.content.strip(), found.calls) == (content.strip(), calls)


@pytest.mark.parametrize(("name", "text"), NO_CALLS)
def test_what_is_no_call_is_content_to_the_last_letter(name: str, text: str) -> None:
    assert read_alike(DIALECTS[name].parser, text) == Read(text, [])


@pytest.mark.parametrize("name", NAMES)
def test_marks_that_may_be_special_tokens_are_read(name: str) -> None:
    texts = "".join(text for one, text, *_ in CALLS if one == name)
    found = {*re.findall(r"<\|[^<> ]+>", texts)}
    assert found <= {*DIALECTS[name].markers}


PARTS = [
    *(PREFIX, SUFFIX, OBJECTS, '{"f": {}', "[", "]", "{", "}", ",", '"', "\n", " ", "<", "é"),
    *(TEXT, SECTION, END_OF_SECTION, element("clock"), element("weather", PLACE), *MARKERS),
    *(hy4("weather" + pair("city", "Paris")), "<tool_calls>", "<tool_call>", "</tool_call>"),
    *("</tool_calls>", pair("a", "1"), "<arg_key>", "</arg_value>"),
    *(DSML, END_OF_DSML, invoked("weather", CITY), f'<{SPACED}invoke name="f">', "clock", "1"),
]


@pytest.mark.parametrize("name", NAMES)
@given(text=st.lists(st.sampled_from(PARTS), max_size=14).map("".join), data=st.data())
def test_anything_at_all_is_read_alike_whole_and_in_pieces(
    name: str, text: str, data: st.DataObject
) -> None:
    whole = read_alike(DIALECTS[name].parser, text, data.draw(cut(text)))
    if not whole.calls and not any(one in text for one in (TEXT, END_OF_TEXT, END)):
        assert whole.content == text


def test_a_hy4s_tags_have_the_word_that_its_tokenizer_has() -> None:
    added = ["<|hy_eos|>", "<think:6124c78e>", "<tool_call:6124c78e>", "<arg_key:x y>"]
    dialect = find_dialect("hy_v4", None, added)
    assert dialect
    assert dialect is find_dialect("auto", TEMPLATES["hy_v4"], added)
    word = ":6124c78e"
    text = hy4("weather" + pair("city", "Paris", word), word=word)
    assert read_alike(dialect.parser, text) == Read("", [WEATHER])
    assert dialect.markers[:2] == ("<tool_calls:6124c78e>", "<tool_call:6124c78e>")
    form = find_format("hy_v4", None, added)
    assert form
    assert form.marks == ("<think:6124c78e>", "</think:6124c78e>")
    plain = {"<think>", "<tool_calls>"}
    assert find_dialect("hy_v4", None, plain) is DIALECTS["hy_v4"]
    assert find_format("hy_v4", None, plain) is REASONING_FORMATS["hy_v4"]
    assert find_dialect("hy3", None, added) is DIALECTS["hy3"]
    assert find_format("qwen3", None, added) is REASONING_FORMATS["qwen3"]


TEMPLATES = {
    "hy_v4": "{{ '<tool_calls:6124c78e>' }}{{ '<arg_key:6124c78e>' }}",
    "apertus": "{{- '<|tools_prefix|>[' -}}",
    "kimi_k3": "{{- '<|open|>tools<|sep|>' -}}",
    "deepseek_v41": f"{{{{ '<{SPACED}calls>' }}}}",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_models_are_known_by_their_templates(name: str) -> None:
    dialect = find_dialect("auto", TEMPLATES[name])
    assert dialect is DIALECTS[name]
    also = {"deepseek_v32"} if name == "deepseek_v41" else set()
    assert claims(TEMPLATES[name]) - also == {name}
