"""Calls between marks of many kinds are found, most of them JSON, cut at every place."""

import json
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.tools.dialects.invoke import STEP, STEP_CALL
from api.tools.dialects.known import DIALECTS, find_dialect
from api.tools.structured import calls_or_content
from tests.fakes.tools import Call, Read, claims, cut, read, read_alike, read_cut

PARIS = '{"city": "Paris"}'
WEATHER, CLOCK = ("weather", PARIS, True), ("clock", "{}", True)
OBJECTS = [f'{{"name": "weather", "arguments": {PARIS}}}', '{"name": "clock", "arguments": {}}']
LIST = f"[{', '.join(OBJECTS)}]"
PLUGIN, END_OF_ACTION = "<|action_start|><|plugin|>", "<|action_end|>"
CAT, END_OF_CAT = "<longcat_tool_call>", "</longcat_tool_call>"
E = "<escape>"
GEMMA, END_OF_GEMMA = "<start_function_call>call:", "<end_function_call>"
STEPS, END_OF_STEPS = STEP.opens[0], STEP.closes[0]
STEP_OPENS, SEPARATOR, STEP_ENDS = STEP_CALL
MARKS = {
    "ernie45": ("<tool_call>\n", "\n</tool_call>"),
    "granite-20b-fc": ("<function_call> ", ""),
    "internlm": (f"{PLUGIN}\n", END_OF_ACTION),
    "longcat": (f"{CAT}\n", f"\n{END_OF_CAT}"),
}
LISTS = [
    ("hunyuan_a13b", "<tool_calls>", "</tool_calls>"),
    ("xlam", "", ""),
    ("xlam", "```json\n", "\n```"),
    ("xlam", "```", "```"),
    ("xlam", "[TOOL_CALLS]", ""),
    ("xlam", "<tool_call>", "</tool_call>"),
]


def step(name: str, inner: str = "", kind: str = f"function{SEPARATOR}") -> str:
    """A call as Step 3 has it."""
    invoked = f'<steptml:invoke name="{name}">{inner}</steptml:invoke>'
    return f"{STEP_OPENS}{kind}{invoked}{STEP_ENDS}"


def pair(key: str, value: str) -> str:
    """An argument as newer LongCats have it."""
    key = f"<longcat_arg_key>{key}</longcat_arg_key>"
    return f"{key}\n<longcat_arg_value>{value}</longcat_arg_value>\n"


STEP_CITY = '<steptml:parameter name="city">Paris</steptml:parameter>'


def objects() -> Iterator[tuple[str, str, str, list[Call]]]:
    for name, (opens, closes) in MARKS.items():
        one, other = (f"{opens}{inner}{closes}" for inner in OBJECTS)
        yield name, one, "", [WEATHER]
        yield name, f"{one}\n{other}\n", "", [WEATHER, CLOCK]
        yield name, f"So: {one}{other} Done.", "So: Done.", [WEATHER, CLOCK]
        yield name, f"{opens.strip()} {OBJECTS[1]}", "", [CLOCK]
    for name, opens, closes in LISTS:
        yield name, f"{opens}{LIST}{closes}", "", [WEATHER, CLOCK]
        yield name, f"{opens}\n{LIST}\n{closes}\nSo.", "\nSo.", [WEATHER, CLOCK]
        if opens:
            yield name, f"Hm. {opens}{LIST}{closes}", "Hm.", [WEATHER, CLOCK]


CALLS: list[tuple[str, str, str, list[Call]]] = [
    *objects(),
    ("internlm", f'{PLUGIN}{{"name": "weather", "parameters": {PARIS}}}', "", [WEATHER]),
    ("longcat", f"{CAT}weather\n{pair('city', 'Paris')}{END_OF_CAT}", "", [WEATHER]),
    (
        "longcat",
        f"A\n{CAT}clock{END_OF_CAT}\n{CAT}{OBJECTS[0]}{END_OF_CAT}B",
        "AB",
        [CLOCK, WEATHER],
    ),
    (
        "functiongemma",
        f"Hm. {GEMMA}weather{{city:{E}Paris{E}}}{END_OF_GEMMA}{GEMMA}clock{{}}{END_OF_GEMMA}",
        "Hm.",
        [WEATHER, CLOCK],
    ),
    (
        "functiongemma",
        f"{GEMMA}f{{a:{E}x, }}<e{E},b:[{E}y{E},-1.5,{{c:true}}]}}{END_OF_GEMMA}",
        "",
        [("f", '{"a": "x, }<e", "b": ["y",-1.5,{"c":true}]}', True)],
    ),
    (
        "step3",
        f"So: {STEPS}{step('weather', STEP_CITY)}{step('clock')}{END_OF_STEPS} Done.",
        "So: Done.",
        [WEATHER, CLOCK],
    ),
    (
        "step3",
        f"{STEPS}\n{step('weather', f'{chr(10)}{STEP_CITY}{chr(10)}')}\n{END_OF_STEPS}",
        "",
        [WEATHER],
    ),
    ("step3", f"{STEPS}{step('clock', kind='')}{END_OF_STEPS}", "", [CLOCK]),
]
BROKEN: list[tuple[str, str, str, list[Call]]] = [
    ("xlam", f"{LIST[:-1]} {LIST}", LIST, [WEATHER, CLOCK]),
    ("xlam", f"```{LIST} and\n```", "and\n```", [WEATHER, CLOCK]),
    ("granite-20b-fc", f"<function_call> {OBJECTS[1]} {{", "{", [CLOCK]),
    (
        "longcat",
        f"{CAT}weather{pair('city', 'Paris')}<b>{END_OF_CAT}",
        f"<b>{END_OF_CAT}",
        [("weather", PARIS[:-1], False)],
    ),
]
NO_CALLS = [
    *(("xlam", text) for text in ("[1]", "[]", "```\nx = 1\n```", "```json\n{}\n```", "[TOOL")),
    ("xlam", '[{"name": "new", "arguments": {}}]'),
    ("xlam", '```json\n[{"name": "new", "arguments": {}}]\n```'),
    ("xlam", f"It is {LIST}"),
    ("internlm", f"<|action_start|><|interpreter|>\n{OBJECTS[1]}{END_OF_ACTION}"),
    ("internlm", f"<|action_start|>{OBJECTS[1]}{END_OF_ACTION}"),
    ("longcat", f"<tool_call>{OBJECTS[1]}</tool_call>"),
    ("longcat", f"{CAT}[]{END_OF_CAT}"),
    ("functiongemma", f"<|tool_call>call:clock{{}}{END_OF_GEMMA}"),
    ("functiongemma", f"<start_function_call>clock{{}}{END_OF_GEMMA}"),
    ("granite-20b-fc", "<function_call> the sea"),
    ("hunyuan_a13b", "<tool_calls>[]</tool_calls>"),
    ("step3", f"{STEPS}{END_OF_STEPS}"),
    ("step3", step("clock")),
    ("step3", f"{STEPS}{STEP_OPENS}function{SEPARATOR}clock{STEP_ENDS}{END_OF_STEPS}"),
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
def test_all_marks_are_read_where_they_are_special_tokens(name: str) -> None:
    texts = "".join(text for one, text, *_ in CALLS if one == name)
    assert {*re.findall("<[^<> ]{2,}>", texts)} <= {*DIALECTS[name].markers}


PARTS = [
    *(part for marks in MARKS.values() for part in marks),
    *(part for _, *marks in LISTS for part in marks),
    *(*OBJECTS, LIST, "[", "]", "{", "}", ",", ":", '"', "clock", "\n", " ", "<", "é", "1"),
    *(pair("city", "Paris"), GEMMA, END_OF_GEMMA, "clock{", "city:", E, "a:"),
    *(STEPS, END_OF_STEPS, step("clock"), step("weather", STEP_CITY), *STEP_CALL, STEP.mark),
]


@pytest.mark.parametrize("name", NAMES)
@given(text=st.lists(st.sampled_from(PARTS), max_size=14).map("".join), data=st.data())
def test_anything_at_all_is_read_alike_whole_and_in_pieces(
    name: str, text: str, data: st.DataObject
) -> None:
    whole = read_alike(DIALECTS[name].parser, text, data.draw(cut(text)))
    if not whole.calls:
        assert whole.content == text


def test_a_list_is_calls_also_where_another_form_was_possible() -> None:
    parser = calls_or_content(DIALECTS["xlam"])
    for text in (LIST, f"\n\n{LIST}", f"```json\n{LIST}\n```", f"[TOOL_CALLS]{LIST}"):
        assert read(parser, [*text]).calls == [WEATHER, CLOCK]
    for form in ("[1, 2]", json.dumps({"a": f"[TOOL_CALLS]{LIST}"})):
        assert read(parser, [*form]) == Read(form, [])


TEMPLATES = {
    "functiongemma": "{{- '<start_function_call>call:' + function['name'] + '{' -}}",
    "granite-20b-fc": "{{- '<function_call> ' + {'name': name}|tojson }}",
    "hunyuan_a13b": '<tool_calls>[{"name": "func_name1", "arguments": {}},...]</tool_calls>',
    "internlm": '{{- "<|action_start|><|plugin|>\\n" }}',
    "longcat": '<longcat_tool_call>\n{"name": <function-name>}\n</longcat_tool_call>',
    "step3": "<steptml:invoke name=\"' + name + '\">",
    "xlam": '[{"name": "tool_call_name", "arguments": {"arg1": "value1"}}, ... ',
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_models_are_known_by_their_templates(name: str) -> None:
    dialect = find_dialect("auto", TEMPLATES[name])
    assert dialect is DIALECTS[name]
    assert {id(DIALECTS[one]) for one in claims(TEMPLATES[name])} == {id(dialect)}
