"""Calls in Python are found with marks around them and without, cut at every place."""

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.tools.dialects.known import DIALECTS, find_dialect
from api.tools.parsing.output import CallArguments, CallStarted, ContentText
from api.tools.parsing.reader import CallReader
from api.tools.structured import calls_or_content
from tests.fakes.tools import Call, Read, claims, cut, offered, read, read_alike, read_cut, tool
from tests.unit.test_calls_beside_forms import fits, grammar_of

PARIS = '{"city": "Paris"}'
WEATHER, CLOCK = ("weather", PARIS, True), ("clock", "{}", True)
LIST = "[weather(city='Paris'), clock()]"
SPACED = '\n [ weather( city = "Paris" ) , clock( ) ] \n'
PYTHON, END = "<|python_start|>", "<|python_end|>"
LINES, END_OF_LINES = "<function_calls>", "</function_calls>"
BARE = "pythonic", "llama4_pythonic"
CALLS: list[tuple[str, str, str, list[Call]]] = [
    *((name, LIST, "", [WEATHER, CLOCK]) for name in BARE),
    *(
        (name, '\n [ weather( city = "Paris" ) , clock( ) ] \n', "", [WEATHER, CLOCK])
        for name in BARE
    ),
    *((name, f"{LIST} And so.", "And so.", [WEATHER, CLOCK]) for name in BARE),
    ("llama4_pythonic", f"{PYTHON}{LIST}{END}", "", [WEATHER, CLOCK]),
    ("llama4_pythonic", f"Hm. {PYTHON}\n{LIST}\n{END}\nSo.", "Hm.\nSo.", [WEATHER, CLOCK]),
    ("llama4_pythonic", f"{PYTHON}{LIST}", "", [WEATHER, CLOCK]),
    ("llama4_pythonic", f"{LIST}{PYTHON}[clock()]{END}", "", [WEATHER, CLOCK, CLOCK]),
    ("olmo3", f"{LINES}\nweather(city='Paris')\nclock()\n{END_OF_LINES}", "", [WEATHER, CLOCK]),
    ("olmo3", f"So: {LINES}clock(){END_OF_LINES}.", "So:.", [CLOCK]),
    (
        "olmo3",
        f"{LINES}new(a=null, b=true, c=['</f', {{'d': None}}])\nclock(){END_OF_LINES}",
        "",
        [("new", '{"a": null, "b": true, "c": ["</f", {"d": null}]}', True), CLOCK],
    ),
    ("olmo3", f"{LINES}clock()\n{END_OF_LINES} {LINES}clock(){END_OF_LINES}", "", [CLOCK] * 2),
]
BROKEN: list[tuple[str, str, str, list[Call]]] = [
    ("pythonic", "[clock(), new()]", ", new()]", [CLOCK]),
    ("pythonic", f"[clock()] {LIST}", LIST, [CLOCK]),
    (
        "pythonic",
        "[weather(city='Paris', ='Rome')]",
        " ='Rome')]",
        [("weather", PARIS[:-1], False)],
    ),
    (
        "llama4_pythonic",
        f"[clock(] {PYTHON}{LIST}",
        "]",
        [("clock", "", False), WEATHER, CLOCK],
    ),
    ("llama4_pythonic", f"{PYTHON}[clock()] So.", "So.", [CLOCK]),
    ("olmo3", f"{LINES}clock() the sea{END_OF_LINES}", f"the sea{END_OF_LINES}", [CLOCK]),
]
NO_LISTS = [
    *(
        "[1, 2]",
        "[]",
        "[clock]",
        "[clock](https://x.y)",
        "[new(a=1)]",
        f"Hm. {LIST}",
        "clock()",
    ),
    *('[{"name": "clock"}]', "[ ] Do it", " ", ""),
]
NO_CALLS = [
    *((name, text) for name in BARE for text in NO_LISTS),
    ("pythonic", f"{PYTHON}{LIST}{END}"),
    ("llama4_pythonic", f"{PYTHON}print(1){END}"),
    ("llama4_pythonic", f"{PYTHON}[new()]{END}"),
    ("olmo3", LIST),
    ("olmo3", f"{LINES}{END_OF_LINES}"),
    ("olmo3", f"{LINES}{LIST}{END_OF_LINES}"),
    ("olmo3", f'{LINES}\n<invoke name="clock">'),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), [*CALLS, *BROKEN])
def test_calls_are_read_wherever_the_answer_is_cut(
    name: str, text: str, content: str, calls: list[Call]
) -> None:
    found = read_cut(DIALECTS[name].parser, text)
    assert (found.content.strip(), found.calls) == (content.strip(), calls)


@pytest.mark.parametrize(("name", "text"), NO_CALLS)
def test_what_is_no_call_is_content_to_the_last_letter(name: str, text: str) -> None:
    assert read_alike(DIALECTS[name].parser, text) == Read(text, [])


def test_an_escape_that_python_does_not_know_is_read_without_a_warning() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = read_cut(DIALECTS["pythonic"].parser, r"[weather(city='C:\d\t')]")
    assert found.calls == [("weather", r'{"city": "C:\\d\t"}', True)]
    assert not told


def test_arguments_that_nobody_named_are_of_the_type_that_they_have_to_be() -> None:
    counts = {"type": "object", "additionalProperties": {"type": "integer"}}
    grammar = grammar_of("lfm2", "", offered([tool("f", counts)]))
    call = "<|tool_call_start|>[f(%s)]<|tool_call_end|>"
    for right in ("", "a=1", "a=1, b=2"):
        assert fits(grammar, call % right)
    for wrong in ("a=true", 'a=1, b="x"'):
        assert not fits(grammar, call % wrong)


PARTS = [
    *(
        "[",
        "]",
        "clock(",
        "weather(",
        "new(",
        ")",
        "city=",
        "a=",
        "'",
        '"',
        ",",
        "Paris",
        "\n",
        " ",
    ),
    *(PYTHON, END, LINES, END_OF_LINES, LIST, "clock()", "<", "{", "}", "\\", "None", "1", "é"),
]


@pytest.mark.parametrize("name", [*BARE, "olmo3"])
@given(text=st.lists(st.sampled_from(PARTS), max_size=14).map("".join), data=st.data())
def test_anything_at_all_is_read_alike_whole_and_in_pieces(
    name: str, text: str, data: st.DataObject
) -> None:
    whole = read_alike(DIALECTS[name].parser, text, data.draw(cut(text)))
    if not whole.calls:
        assert whole.content == text


@pytest.mark.parametrize("name", BARE)
def test_a_list_that_may_be_one_of_calls_is_held_until_it_is_known(name: str) -> None:
    reader = CallReader(DIALECTS[name].parser, offered())
    assert reader.read("[wea") == []
    assert reader.read("ther(") == [CallStarted("weather")]
    assert reader.read("city='Paris',") == [CallArguments('{"city": "Paris"')]
    other = CallReader(DIALECTS[name].parser, offered())
    assert other.read("[ ") == []
    assert other.read("{") == [ContentText("[ {")]


@pytest.mark.parametrize("name", BARE)
def test_a_list_is_calls_also_where_another_form_was_possible(name: str) -> None:
    parser = calls_or_content(DIALECTS[name])
    assert read(parser, [*LIST]).calls == [WEATHER, CLOCK]
    assert read(parser, [*f"\n\n{LIST}"]).calls == [WEATHER, CLOCK]
    for form in ("[1, 2]", f'{{"a": "{PYTHON}{LIST}"}}'):
        assert read(parser, [*form]) == Read(form, [])


SHOWN = "Respond in the format [func_name1(name1=value1, name2=value2), func_name2(...)]"
TEMPLATES = {
    "pythonic": f"<|start_header_id|>{SHOWN}",
    "llama4_pythonic": f"<|header_start|>{SHOWN}",
    "olmo3": "'<function_calls>' + message['function_calls'] + '</function_calls>'",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_models_are_known_by_their_templates(name: str) -> None:
    assert find_dialect("auto", TEMPLATES[name]) is DIALECTS[name]
    assert claims(TEMPLATES[name]) == {name}


def test_sections_of_invocations_are_no_olmos() -> None:
    assert find_dialect("auto", '<function_calls><invoke name="f">') is None
