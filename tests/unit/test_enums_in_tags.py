"""Enums of texts are kept in calls in tags, and what they leave is read back as it is."""

import json
from typing import Any

import pytest

from api.tools.dialects.known import DIALECTS
from api.wire import WireError
from tests.fakes.call_starts import start_of
from tests.fakes.tools import offered, read, tool
from tests.unit.test_calls_beside_forms import FAMILIES, fits
from tests.unit.test_odd_keys import TAGGED
from tests.unit.test_strict_calls import grammar_of, strict, walked

ENDS = (
    "</arg_value>",
    "</arg_value:opensource>",
    "</longcat_arg_value>",
    "</parameter>",
    "</steptml:parameter>",
    "</｜DSML｜parameter>",  # noqa: RUF001  its marks are of these letters
    "</｜DSML｜ parameter>",  # noqa: RUF001
    "<|close|>argument<|sep|>",
)
COLOUR = {"enum": ["red", "blue"], "type": "string"}
IN_TAGS = [one for one in FAMILIES if one[0] in TAGGED]


def argument(name: str, template: str, schema: object, seed: int = 0) -> Any:  # noqa: ANN401
    """The argument `a` of a strict call that the grammar leaves."""
    defs = {"colour": COLOUR}
    parameters = {"properties": {"a": schema}, "required": ["a"], "$defs": defs}
    tools = offered([strict("f", parameters)])
    grammar = grammar_of(name, template, tools, parallel=False)
    text = walked(grammar, start_of(name, template), seed)
    assert fits(grammar, text)
    [(_, told, whole)] = read(DIALECTS[name].parser, [*text], tools).calls
    assert whole, text
    return json.loads(told)["a"]


@pytest.mark.parametrize("value", ["\n", "\na", "a\n\n", "\n\na\n", "", " a ", "<", 'a"\\'])
@pytest.mark.parametrize(("name", "template"), IN_TAGS)
def test_a_text_is_read_as_it_is_in_the_enum(name: str, template: str, value: str) -> None:
    assert argument(name, template, {"enum": [value]}) == value


@pytest.mark.parametrize(("name", "template"), IN_TAGS)
def test_a_text_with_the_mark_of_its_end_is_not_chosen(name: str, template: str) -> None:
    values = [*(f"a{end}b" for end in ENDS), *ENDS, "a"]
    found = {argument(name, template, {"enum": values}, seed) for seed in range(4)}
    assert found <= set(values)


@pytest.mark.parametrize(("name", "template"), IN_TAGS)
def test_an_enum_may_stand_behind_a_reference_or_have_one_text(
    name: str, template: str
) -> None:
    assert argument(name, template, {"$ref": "#/$defs/colour"}) in COLOUR["enum"]
    assert argument(name, template, {"const": "red", "type": "string"}) == "red"


@pytest.mark.parametrize(("name", "template"), IN_TAGS)
def test_an_enum_may_be_one_of_all_schemas(name: str, template: str) -> None:
    reference = {"$ref": "#/$defs/colour"}
    assert argument(name, template, {"allOf": [reference], "default": "red"}) in COLOUR["enum"]
    assert argument(name, template, {"allOf": [reference, {"const": "red"}]}) == "red"
    some = {"enum": ["blue", "green"], "allOf": [{"type": "string"}, reference]}
    assert argument(name, template, some) == "blue"


@pytest.mark.parametrize(("name", "template"), IN_TAGS)
def test_a_text_deep_in_a_strict_argument_may_have_any_mark(name: str, template: str) -> None:
    value = [{"a": [f'a{end}\\"{end}' for end in ENDS]}, 1]
    assert argument(name, template, {"const": value}) == value


@pytest.mark.parametrize("strictly", [True, False])
@pytest.mark.parametrize("text", ["[1", '{"a', '["x\n"', "x", '{"a": 1} 2'])
def test_what_is_no_json_ends_with_the_mark(text: str, *, strictly: bool) -> None:
    schema = {"properties": {"a": {"type": ["object", "array"]}}}
    one = strict("f", schema) if strictly else tool("f", schema)
    answer = f"<tool_call><function=f><parameter=a>{text}</parameter></function></tool_call>"
    [(_, told, whole)] = read(DIALECTS["qwen3_coder"].parser, [*answer], offered([one])).calls
    in_string = strictly and text == '{"a'
    assert whole is not in_string
    assert in_string or json.loads(told) == {"a": text}


def test_an_enum_that_nobody_could_read_is_refused() -> None:
    with pytest.raises(WireError, match="each text of an enum has </parameter>"):
        argument("qwen3_coder", "", {"enum": ["</parameter>"]})
