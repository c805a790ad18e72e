"""Arguments are read whatever their names in the schema look like."""

import json
from collections.abc import Sequence

import pytest

from api.tools.dialects.known import DIALECTS
from api.tools.tool_choice import OfferedFunctions
from tests.fakes.call_starts import start_of
from tests.fakes.tools import Read, offered, read
from tests.unit.test_calls_beside_forms import FAMILIES
from tests.unit.test_strict_calls import grammar_of, strict, walked

KEYS = ("größe", "user.name", "filter[name]", "@type", "a b", "a=b", "x:y", "it's", "f(x)")
SIGNS = ("a<b", "a>b", 'say "x"', " x ", "</arg_key>", "<b>", 'c">', "\nd")
TAGGED = (
    *("deepseek_v32", "deepseek_v41", "glm45", "hy3", "hy_v4", "kimi_k3", "longcat"),
    *("minimax_m2", "qwen3_coder", "seed_oss", "step3"),
)
COUNT = {"type": "integer", "minimum": 0, "maximum": 9}


def taking(keys: Sequence[str]) -> OfferedFunctions:
    properties = dict.fromkeys(keys, COUNT)
    rest = {"required": [*keys], "additionalProperties": False}
    return offered([strict("trip", {"type": "object", "properties": properties, **rest})])


TOOLS = taking(KEYS)
BEGINNINGS = {
    "llama3_json": '{"name": "trip", ',
    "llama4_pythonic": "[trip(",
    "pythonic": "[trip(",
}
HELD = [
    (name, template)
    for name, template in FAMILIES
    if name in BEGINNINGS or DIALECTS[name].start_markers
]
GEMMA = "<|tool_call>call:trip{%s}<tool_call|>"
PYTHON = "<|tool_call_start|>[trip(%s)]<|tool_call_end|>"


@pytest.mark.parametrize(("name", "template"), HELD)
def test_a_call_of_a_grammar_is_read_with_any_keys(name: str, template: str) -> None:
    begun = BEGINNINGS.get(name) or start_of(name, template)
    text = walked(grammar_of(name, template, TOOLS, parallel=False), begun, seed=1)
    found = read_by(name, text)
    [(called, arguments, whole)] = found.calls
    assert (found.content, called, whole) == ("", "trip", True)
    assert json.loads(arguments).keys() == set(KEYS)


@pytest.mark.parametrize("key", SIGNS)
@pytest.mark.parametrize(("name", "template"), [one for one in HELD if one[0] in TAGGED])
def test_a_key_with_characters_of_tags_is_read(name: str, template: str, key: str) -> None:
    tools = taking([key, "z"])
    begun = start_of(name, template)
    text = walked(grammar_of(name, template, tools, parallel=False), begun, seed=1)
    [(_, arguments, whole)] = read_by(name, text, tools).calls
    assert ([*json.loads(arguments)], whole) == ([key, "z"], True)


@pytest.mark.parametrize("key", ["a", "aa", " a ", "ab"])
def test_words_that_are_no_key_of_the_schema_are_read_beside_those(key: str) -> None:
    text = f"<tool_call>trip<arg_key>{key}</arg_key><arg_value>1</arg_value></tool_call>"
    [(_, arguments, whole)] = read_by("glm45", text, taking(["a<b"])).calls
    assert (json.loads(arguments), whole) == ({key.strip(): 1}, True)


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        ("gemma4", GEMMA % "a b:1, größe : 2,z:3", {"a b": 1, "größe": 2, "z": 3}),
        ("lfm2", PYTHON % "a b=1, größe = 2, a =3", {"a b": 1, "größe": 2, "a": 3}),
        ("lfm2", PYTHON % "a=b='x', c=3", {"a=b": "x", "c": 3}),
    ],
)
def test_keys_that_nobody_named_are_read_beside_them(
    name: str, text: str, arguments: dict[str, object]
) -> None:
    [(_, told, whole)] = read_by(name, text).calls
    assert (json.loads(told), whole) == (arguments, True)


@pytest.mark.parametrize("name", ["gemma4", "lfm2"])
@pytest.mark.parametrize("key", ["größer", "a c", "@", ""])
def test_other_keys_are_names(name: str, key: str) -> None:
    text = GEMMA % f"{key}:1" if name == "gemma4" else PYTHON % f"{key}=1"
    [(_, _, whole)] = read_by(name, text).calls
    assert not whole


def read_by(name: str, text: str, tools: OfferedFunctions = TOOLS) -> Read:
    dialect = DIALECTS[name]
    parser = dialect.strict_parser or dialect.parser
    whole = read(parser, [text], tools)
    assert read(parser, [*text], tools) == whole
    return whole
