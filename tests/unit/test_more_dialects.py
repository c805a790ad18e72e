"""Calls of models in lists, sections of invocations, and Python, cut at every place."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.tools.dialects.invoke import WORD
from api.tools.dialects.known import DIALECTS, find_dialect
from api.tools.parsing.output import CallArguments, CallStarted, ContentText
from api.tools.parsing.python_values import to_json
from api.tools.parsing.reader import CallReader
from tests.fakes.tools import Call, Read, cut, offered, read

PARIS = '{"city": "Paris"}'
WEATHER, CLOCK = ("weather", PARIS, True), ("clock", "{}", True)
TWO = f'[{{"name": "weather", "arguments": {PARIS}}}, {{"name": "clock", "arguments": {{}}}}]'
LISTS = {
    "apriel": ("<tool_calls>", "</tool_calls>"),
    "granite": ("<|tool_call|>", ""),
    "nemotron": ("<TOOLCALL>", "</TOOLCALL>"),
    "phi4_mini_json": ("functools", ""),
}
ACTIONS = (
    '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", "parameters": '
    f'{PARIS}}},\n    {{"tool_call_id": "1", "tool_name": "clock", "parameters": {{}}}}\n]'
    "<|END_ACTION|>"
)
M2_CITY = '<parameter name="city">Paris</parameter>\n'
M2 = (
    f'<minimax:tool_call>\n<invoke name="weather">\n{M2_CITY}</invoke>\n'
    '<invoke name="clock">\n</invoke>\n</minimax:tool_call>'
)


Q = '<|"|>'


def opensource(text: str) -> str:
    """With the word that is in all tags of Hy3."""
    return text.replace(">", ":opensource>")


def dsml(section: str, *invocations: str) -> str:
    inner = "".join(f"<{WORD}invoke {one}</{WORD}invoke>\n" for one in invocations)
    return f"<{WORD}{section}>\n{inner}</{WORD}{section}>"


def parameter(name: str, string: str, value: str) -> str:
    return f'<{WORD}parameter name="{name}" string="{string}">{value}</{WORD}parameter>\n'


CITY = parameter("city", "true", "Paris")
CALLS: list[tuple[str, str, str, list[Call]]] = [
    *((name, f"{one}{TWO}{end}", "", [WEATHER, CLOCK]) for name, (one, end) in LISTS.items()),
    *(
        (name, f"A. {one} {TWO} \nB", "A. \nB", [WEATHER, CLOCK])
        for name, (one, _) in LISTS.items()
    ),
    ("granite", f"A. <tool_call> {TWO}\nB", "A.\nB", [WEATHER, CLOCK]),
    ("cohere", f"So: {ACTIONS}", "So:", [WEATHER, CLOCK]),
    ("minimax_m2", f"So:\n{M2}\nDone.", "So:\nDone.", [WEATHER, CLOCK]),
    ("minimax_m2", M2.replace("\n", ""), "", [WEATHER, CLOCK]),
    (
        "minimax_m2",
        '<minimax:tool_call><invoke name="new"><parameter name="a">[1]</parameter>'
        '<parameter name="b">x <y>\n</parameter></invoke></minimax:tool_call>',
        "",
        [("new", '{"a": [1], "b": "x <y>\\n"}', True)],
    ),
    (
        "deepseek_v32",
        "\n\n" + dsml("function_calls", f'name="weather">\n{CITY}', 'name="clock">\n'),
        "",
        [WEATHER, CLOCK],
    ),
    (
        "deepseek_v32",
        "I look.\n\n"
        + dsml(
            "tool_calls",
            'name="new">\n' + parameter("a", "true", "1") + parameter("b", "false", "[null]"),
        ),
        "I look.",
        [("new", '{"a": "1", "b": [null]}', True)],
    ),
    (
        "hy3",
        opensource(
            "So:<tool_calls>\n<tool_call>weather<tool_sep>\n<arg_key>city</arg_key>\n"
            "<arg_value>Paris</arg_value>\n</tool_call>\n<tool_call>clock<tool_sep>\n"
            "</tool_call>\n</tool_calls>Done."
        ),
        "So:Done.",
        [WEATHER, CLOCK],
    ),
    (
        "lfm2",
        'I look. <|tool_call_start|>[weather(city="Paris"), clock()]<|tool_call_end|>So.',
        "I look.So.",
        [WEATHER, CLOCK],
    ),
    (
        "lfm2",
        "<|tool_call_start|>[f(a='it\\'s, (b)', b=[1, {'c': None}], d=True, e=-1.5, g=\"\")]",
        "",
        [
            (
                "f",
                '{"a": "it\'s, (b)", "b": [1, {"c": null}], "d": true, "e": -1.5, "g": ""}',
                True,
            )
        ],
    ),
    (
        "lfm2",
        "<|tool_call_start|>[f(a='it's', b = null )]<|tool_call_end|>",
        "",
        [("f", '{"a": "it\'s", "b": null}', True)],
    ),
    (
        "lfm2",
        "<|tool_call_start|>[f(a=1]) <|tool_call_start|>[clock()]",
        "a=1])",
        [("f", "", False), CLOCK],
    ),
    (
        "gemma4",
        f"Hm.\n<|tool_call>call:weather{{city:{Q}Paris{Q}}}<tool_call|><|tool_call>call:clock{{}}"
        "<tool_call|>So.",
        "Hm.So.",
        [WEATHER, CLOCK],
    ),
    (
        "gemma4",
        f'<|tool_call>call:f{{ a:{Q}x,}}"\n{Q}, b:[1,{Q}y]{Q},'
        f"{{k:true,2:None,{Q}a b{Q}:c d}}],c:-1.5}}",
        "",
        [
            (
                "f",
                r'{"a": "x,}\"\n", "b": [1,"y]",{"k":true,"2":null,"a b":"c d"}], "c": -1.5}',
                True,
            )
        ],
    ),
]
BROKEN: list[tuple[str, str, str, list[Call]]] = [
    ("nemotron", f"<TOOLCALL>{TWO[:-1]}</TOOLCALL>", "", [WEATHER, CLOCK]),
    (
        "gemma4",
        "<|tool_call>call:f{a:1,:2}<tool_call|><|tool_call>call:g{a:[}]}",
        ":2}<tool_call|>a:[}]}",
        [("f", '{"a": 1', False), ("g", "", False)],
    ),
    ("gemma4", f"<|tool_call>call:f{{a:{Q}b{Q}c}}", "c}", [("f", '{"a": "b"', False)]),
    ("lfm2", "<|tool_call_start|>[f(a=1] no", "a=1] no", [("f", "", False)]),
]
NO_CALLS = [
    ("nemotron", "<TOOLCALL>"),
    ("nemotron", "<TOOLCALL>[]</TOOLCALL>"),
    ("apriel", '<tool_calls>"name": "clock"</tool_calls>'),
    ("phi4_mini", "import functools\nfunctools.cache"),
    ("cohere", '<|START_ACTION|>[{"tool": "clock"}]<|END_ACTION|>'),
    ("minimax_m2", "<minimax:tool_call></minimax:tool_call>"),
    ("minimax_m2", '<invoke name="clock"></invoke>'),
    ("minimax_m2", '<minimax:tool_call><invoke name="a b"></invoke></minimax:tool_call>'),
    ("deepseek_v32", dsml("calls", 'name="clock">\n')),
    ("lfm2", "<|tool_call_start|>clock()<|tool_call_end|>"),
    ("lfm2", "<|tool_call_start|>[clock]<|tool_call_end|>"),
    ("gemma4", "<|tool_call>clock{}<tool_call|>"),
    ("hy3", "<tool_calls><tool_call>clock<tool_sep></tool_call></tool_calls>"),
    ("hy3", opensource("<tool_call>clock<tool_sep></tool_call>")),
    ("gemma4", "<|tool_call>call:a b{}<tool_call|>"),
]


def read_by(name: str, *pieces: str) -> Read:
    return read(DIALECTS[name].parser, pieces)


@pytest.mark.parametrize(("name", "text", "content", "calls"), [*CALLS, *BROKEN])
def test_calls_are_read_wherever_the_answer_is_cut(
    name: str, text: str, content: str, calls: list[Call]
) -> None:
    whole = read_by(name, text)
    assert whole == Read(content, calls)
    assert read_by(name, *text) == whole
    for place in range(len(text)):
        assert read_by(name, text[:place], text[place:]) == whole
        assert all(not done or json.loads(said) is not None for _, said, done in whole.calls)


@pytest.mark.parametrize(("name", "text"), NO_CALLS)
def test_what_is_no_call_is_content_to_the_last_letter(name: str, text: str) -> None:
    name = "phi4_mini_json" if name == "phi4_mini" else name
    assert read_by(name, text) == Read(text, [])
    assert read_by(name, *text) == Read(text, [])


PARTS = [
    *(part for one in LISTS.values() for part in one if part),
    *("<|START_ACTION|>", "<|END_ACTION|>", "<minimax:tool_call>", "</minimax:tool_call>"),
    *('<invoke name="clock">', "</invoke>", M2_CITY, f"<{WORD}tool_calls>", CITY),
    *(f'<{WORD}invoke name="clock">', f"</{WORD}invoke>", f"</{WORD}tool_calls>"),
    *("<|tool_call_start|>", "<|tool_call_end|>", "[", "]", "clock(", ")", "a=", "'", '"', ","),
    *map(opensource, ("<tool_calls>", "<tool_call>clock", "<tool_sep>", "</tool_call>")),
    *map(opensource, ("<arg_key>a</arg_key>", "<arg_value>x</arg_value>")),
    *("<|tool_call>", "<tool_call|>", "call:clock{", Q, "a:", ":"),
    *(TWO, '{"name": "clock"', "}", "{", "\\", "\n", " ", "é", "1", "<", "True", "-"),
]
NAMES = [*LISTS, "cohere", "minimax_m2", "deepseek_v32", "gemma4", "hy3", "lfm2"]


@pytest.mark.parametrize("name", NAMES)
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


PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=8)
VALUES = st.recursive(
    PLAIN | st.floats(allow_nan=False, allow_infinity=False),
    lambda one: (
        st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=3), one, max_size=3)
    ),
    max_leaves=6,
)


@given(value=VALUES, other=VALUES)
def test_values_of_python_become_json(value: object, other: object) -> None:
    text = f"<|tool_call_start|>[f(a={value!r}, b={json.dumps(other)})]<|tool_call_end|>"
    [(name, arguments, whole)] = read_by("lfm2", text).calls
    assert (name, whole) == ("f", True)
    assert json.loads(arguments) == {"a": value, "b": other}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Paris", '"Paris"'),
        ("{1, 2}", '"{1, 2}"'),
        ("b'x'", "\"b'x'\""),
        ("'it's'", '"it\'s"'),
        ("-" * 5_000 + "1", json.dumps("-" * 5_000 + "1")),
        ("(" * 500, json.dumps("(" * 500)),
        ("9" * 6_000, f'"{"9" * 6_000}"'),
        (r"'\ud800'", r'"\\ud800"'),
    ],
)
def test_what_is_no_value_is_a_text(text: str, said: str) -> None:
    assert to_json(text) == said


def test_arguments_are_said_as_they_come() -> None:
    reader = CallReader(DIALECTS["minimax_m2"].parser, offered())
    assert reader.read("Hm. <minimax:tool") == [ContentText("Hm.")]
    assert reader.read('_call><invoke name="weather"><parameter name="city"') == [
        CallStarted("weather")
    ]
    assert reader.read(">Par") == [CallArguments('{"city": "Par')]
    reader = CallReader(DIALECTS["lfm2"].parser, offered())
    assert reader.read("<|tool_call_start|>[weather(city='Pa") == [CallStarted("weather")]
    assert reader.read("ris', ") == [CallArguments('{"city": "Paris"')]


TEMPLATES = {
    "apriel": "'\\n<tool_calls>[' ... ']</tool_calls>'",
    "cohere": '<|START_ACTION|>[ {"tool_call_id": "0", "tool_name": "f", "parameters": {}}',
    "deepseek_v32": f"{{% set dsml_token = '{WORD}' %}} function_calls",
    "gemma4": "{{- '<|tool_call>call:' + function['name'] + '{' -}}",
    "hy3": "{% set HYTK = ':opensource' %}{% set sep = '<tool_sep{}>'.format(HYTK) %}",
    "lfm2": "List of tools: <|tool_list_start|>[",
    "minimax_m2": "{% set toolcall_begin_token = '<minimax:tool_call>' %}<invoke name=",
    "nemotron": "{{- '<TOOLCALL>[' -}}",
    "phi4_mini_json": 'formatted as functools[{"name": [function name]',
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_models_are_known_by_their_templates(name: str) -> None:
    assert find_dialect("auto", TEMPLATES[name]) is DIALECTS[name]
