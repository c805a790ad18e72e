"""Calls of models of 2026 are found, however their answers are cut."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.tools.dialects.invoke import SPACED, WORD
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
]
BROKEN: list[tuple[str, str, str, list[Call]]] = [
    ("apertus", f"{PREFIX}[{OBJECTS}, 1]{SUFFIX}", f", 1]{SUFFIX}", [WEATHER, CLOCK]),
    ("apertus", f'{PREFIX}[{{"f": {{}}, "g": {{}}}}]', ', "g": {}}]', [("f", "{}", False)]),
]
NO_CALLS = [
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
    *(DSML, END_OF_DSML, invoked("weather", CITY), f'<{SPACED}invoke name="f">', "clock", "1"),
]


@pytest.mark.parametrize("name", NAMES)
@given(text=st.lists(st.sampled_from(PARTS), max_size=14).map("".join), data=st.data())
def test_anything_at_all_is_read_alike_whole_and_in_pieces(
    name: str, text: str, data: st.DataObject
) -> None:
    whole = read_alike(DIALECTS[name].parser, text, data.draw(cut(text)))
    if not whole.calls:
        assert whole.content == text


TEMPLATES = {
    "apertus": "{{- '<|tools_prefix|>[' -}}",
    "deepseek_v41": f"{{{{ '<{SPACED}calls>' }}}}",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_models_are_known_by_their_templates(name: str) -> None:
    dialect = find_dialect("auto", TEMPLATES[name])
    assert dialect is DIALECTS[name]
    also = {"deepseek_v32"} if name == "deepseek_v41" else set()
    assert claims(TEMPLATES[name]) - also == {name}
