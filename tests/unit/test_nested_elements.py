"""Arguments of a MiniMax M3 are elements, and lists and objects are elements in those."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.tools.dialects.known import DIALECTS, find_dialect
from api.tools.dialects.minimax_m3 import CLOSES, DEEPEST, INVOKE, MARK, OPENS
from tests.fakes.tools import Read, claims, cut, offered, read, read_alike, read_cut, tool

PARSER = DIALECTS["minimax_m3"].parser
PARIS = '{"city": "Paris"}'
WEATHER, CLOCK = ("weather", PARIS, True), ("clock", "{}", True)


def tag(name: str, inner: str = "") -> str:
    return f"{MARK}<{name}>{inner}{MARK}</{name}>"


def call(name: str, *arguments: str, quote: str = '"') -> str:
    return f"{INVOKE}{quote}{name}{quote}>{''.join(arguments)}{MARK}</invoke>"


CITY = tag("city", "Paris")
POINT = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "string"}}}
SCHEMA: dict[str, Any] = {
    "$defs": {"point": POINT},
    "properties": {
        "whole": {"type": "integer"},
        "text": {"type": "string"},
        "any": {},
        "points": {"type": "array", "items": {"$ref": "#/$defs/point"}},
        "point": {"anyOf": [{"$ref": "#/$defs/point"}, {"type": "null"}]},
        "named": {"type": "object", "additionalProperties": {"type": "number"}},
        "either": {"type": ["array", "object"], "items": {"type": "integer"}},
        "both": {"type": ["array", "string"]},
    },
}
ARGUMENTS: list[tuple[str, dict[str, Any]]] = [
    (tag("whole", "1") + tag("text", " 1 \n"), {"whole": 1, "text": " 1 \n"}),
    (tag("whole", " 1\n") + tag("any", "[1]"), {"whole": 1, "any": [1]}),
    (tag("any", "Paris"), {"any": "Paris"}),
    (
        tag("points", tag("item", tag("x", "1") + tag("y", "2"))),
        {"points": [{"x": 1, "y": "2"}]},
    ),
    (tag("points", f"\n{tag('item', tag('x', '1'))}\n" * 2), {"points": [{"x": 1}, {"x": 1}]}),
    (tag("points"), {"points": []}),
    (tag("points", '[{"x": 1}]'), {"points": [{"x": 1}]}),
    (tag("point", tag("x", "1")), {"point": {"x": 1}}),
    (tag("point", "null"), {"point": None}),
    (tag("point", " "), {"point": {}}),
    (tag("named", tag("a", "1.5") + tag("b", "2")), {"named": {"a": 1.5, "b": 2}}),
    (tag("either", tag("item", "1") + tag("item", "2")), {"either": [1, 2]}),
    (tag("either", tag("a", "x")), {"either": {"a": "x"}}),
    (tag("both"), {"both": ""}),
    (tag("both", tag("item", "x")), {"both": ["x"]}),
    (tag("new", tag("a", "1") + tag("a", "x")), {"new": {"a": [1, "x"]}}),
    (tag("new", "so " + tag("$text", "1")), {"new": {"$text": 1, "$$text": "so "}}),
    (tag("whole", "1") + tag("text", "a") + tag("whole", "2"), {"whole": [1, 2], "text": "a"}),
    (tag("a b", "<b>]<]") + tag('"', "]<]minimax"), {"a b": "<b>]<]", '"': "]<]minimax"}),
]


@pytest.mark.parametrize(("text", "arguments"), ARGUMENTS)
def test_elements_become_what_the_schema_says(text: str, arguments: dict[str, Any]) -> None:
    [(_, told, whole)] = read(
        PARSER, [OPENS + call("f", text)], offered([tool("f", SCHEMA)])
    ).calls
    assert (json.loads(told), whole) == (arguments, True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{OPENS}\n{call('weather', CITY)}\n{call('clock')}\n{CLOSES}", "So: Done."),
        (f"{OPENS}{call('weather', CITY, quote='')}{call('clock')}{CLOSES}", "So: Done."),
        (
            OPENS + call("weather", f"\n{CITY}\n", quote="'") + call("clock") + CLOSES,
            "So: Done.",
        ),
    ],
)
def test_calls_are_read_wherever_the_answer_is_cut(text: str, said: str) -> None:
    assert read_cut(PARSER, f"So: {text} Done.") == Read(said, [WEATHER, CLOCK])


@pytest.mark.parametrize(
    "inner", [f"{MARK}<>", f"{MARK}a", tag(" ", "x"), f"{MARK}<city>a{MARK}</invoke>"]
)
def test_what_is_no_element_breaks_the_call(inner: str) -> None:
    found = read_cut(PARSER, f"{OPENS}{call('weather', inner)}{call('clock')}{CLOSES}")
    assert found.calls == [("weather", "", False), CLOCK]


@pytest.mark.parametrize(
    "text", [OPENS, OPENS + CLOSES, call("clock"), f"{OPENS}{MARK}<a>", MARK]
)
def test_what_is_no_call_is_content_to_the_last_letter(text: str) -> None:
    assert read_alike(PARSER, text) == Read(text, [])


def test_elements_are_not_read_at_any_depth() -> None:
    for deep, whole in ((DEEPEST - 1, True), (DEEPEST, False)):
        inner = f"{MARK}<a>" * deep + f"{MARK}</a>" * deep
        [(_, _, told)] = read(PARSER, [OPENS + call("new", inner)]).calls
        assert told is whole


PARTS = [
    *(OPENS, CLOSES, MARK, CITY, call("clock"), INVOKE, '"f">', f"{MARK}</invoke>"),
    *(f"{MARK}<a>", f"{MARK}</a>", "]<]", "<", ">", "a", " ", "\n", "é", "1"),
]


@given(text=st.lists(st.sampled_from(PARTS), max_size=14).map("".join), data=st.data())
def test_anything_at_all_is_read_alike_whole_and_in_pieces(
    text: str, data: st.DataObject
) -> None:
    whole = read_alike(PARSER, text, data.draw(cut(text)))
    if not whole.calls:
        assert whole.content == text


def test_its_templates_are_known() -> None:
    template = "{% set ns = ']<]minimax[>[' %}{{ ns ~ '<tool_call>' }}"
    assert find_dialect("auto", template) is DIALECTS["minimax_m3"]
    assert "minimax_m3" in claims(template)


def test_references_may_lead_in_circles() -> None:
    again = {"$ref": "#/$defs/tree"}
    tree = {"anyOf": [again, again, POINT], "allOf": [again, again]}
    schema = {"$defs": {"tree": tree}, "properties": {"tree": again}}
    given = call("plant", tag("tree", tag("x", "1") + tag("y", "2")))
    [(_, told, whole)] = read(PARSER, [OPENS + given], offered([tool("plant", schema)])).calls
    assert (json.loads(told), whole) == ({"tree": {"x": 1, "y": "2"}}, True)
