"""Values that a Gemma writes without quotes are of a type that the schema accepts."""

import json
from typing import Any

import pytest

from api.tools.dialects.gemma import GEMMA
from api.tools.tool_choice import OfferedFunctions
from api.wire import WireError
from tests.fakes.tools import offered, read, tool
from tests.unit.test_calls_beside_forms import fits, grammar_of

VALUES = ("1", "-20", "0.5", "007", "true", "false", "null", '<|"|>x<|"|>', "{b:true}", "[]")
OBJECT_KEYS = {"properties": {"b": {"type": "boolean"}}, "required": ["b"]}
OBJECT = {"type": "object", **OBJECT_KEYS}
NO = {"type": "null"}
LIST = {"type": "array", "items": {"type": "string"}}
PAIRS, NO_PAIRS = ["[]", "[1]", "[1,{b:true}]"], ["[true]", "[1,2]", "[1,{b:true},1]"]
SOME = ["{}", "{y:1}", "{x:1,y:1}", "{y:1,x:1}"]


def takes(schema: Any) -> OfferedFunctions:  # noqa: ANN401 - a schema may be anything
    one = {"type": "object", "properties": {"a": schema, "z": {"type": "boolean"}}}
    return offered([tool("f", one)])


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({"type": ["string", "null"]}, {"null", '<|"|>x<|"|>'}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"null", '<|"|>x<|"|>'}),
        ({"type": ["string", "integer"]}, {"1", "-20", '<|"|>x<|"|>'}),
        ({"type": ["string", "number"]}, {"1", "-20", "0.5", '<|"|>x<|"|>'}),
        ({"anyOf": [OBJECT, {"type": "null"}]}, {"null"}),
        ({"type": ["array", "boolean"], "items": OBJECT}, {"true", "false", "[]"}),
        ({"$ref": "#/properties/z"}, {"true", "false"}),
        ({"type": "string"}, {'<|"|>x<|"|>'}),
    ],
)
def test_a_value_is_of_a_type_that_the_schema_accepts(schema: object, values: set[str]) -> None:
    grammar = grammar_of("gemma4", "", takes(schema))
    call = "<|tool_call>call:f{a:%s}<tool_call|>"
    found = {one for one in VALUES if fits(grammar, call % one)}
    assert found - {"{b:true}"} == values


def test_a_number_has_no_leading_zeros_as_nobody_could_read_it() -> None:
    grammar = grammar_of("gemma4", "", takes({"type": ["number", "object"], **OBJECT_KEYS}))
    call = "<|tool_call>call:f{a:%s}<tool_call|>"
    assert {one for one in VALUES if fits(grammar, call % one)} >= {"1", "-20", "0.5"}
    assert not fits(grammar, call % "007")


CALL = "<|tool_call>call:f{a:%s}<tool_call|>"
NUMBER = {"type": "integer"}
NODE = {
    "properties": {"v": NUMBER, "next": {"anyOf": [{"$ref": "#/$defs/node"}, NO]}},
    "required": ["v"],
    "additionalProperties": False,
    "type": "object",
}
PART = {"properties": {"p": NUMBER}, "required": ["p"], "additionalProperties": False}
DEFS = {"node": NODE, "part": PART, "open": {**PART, "additionalProperties": True}}


def within(key: str, *others: str) -> dict[str, Any]:
    inner = within(*others) if others else NUMBER
    return {"type": "object", "properties": {key: inner}, "required": [key]}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"anyOf": [OBJECT, NO]}, ["{b:true}", "null"], ["{c:1}", "{b:1}", "{}", "1"]),
        ({"oneOf": [within("x"), within("y")]}, ["{x:1}", "{y:1}"], ["{z:1}", "{}"]),
        ({"anyOf": [LIST, NO]}, ['[<|"|>x<|"|>]', "[]", "null"], ["[1]", "[{}]"]),
        ({"allOf": [{"$ref": "#/$defs/open"}, OBJECT_KEYS]}, ["{p:1,b:true}"], ["{p:1}", "{}"]),
        ({"allOf": [{"$ref": "#/$defs/part"}]}, ["{p:1}"], ["{q:1}", "{}"]),
        ({"enum": ["x", 1, None]}, ['<|"|>x<|"|>', "1", "null"], ["2", '<|"|>y<|"|>']),
        ({"const": {"k": [1, "x"]}}, ['{k:[1,<|"|>x<|"|>]}'], ["{k:[1]}", "{}"]),
        ({"type": "object", "additionalProperties": NUMBER}, ["{k:1,l:2}", "{}"], ["{k:null}"]),
        ({"type": "array", "prefixItems": [NUMBER, OBJECT], "items": False}, PAIRS, NO_PAIRS),
        (
            {"type": "array", "items": [NUMBER, OBJECT], "additionalItems": False},
            PAIRS,
            NO_PAIRS,
        ),
        (within(*"bcde"), ["{b:{c:{d:{e:1}}}}"], ["{b:{c:{d:1}}}", "{b:{c:{d:{e:null}}}}"]),
        (within("ids[]"), ['{<|"|>ids[]<|"|>:1}'], ["{ids[]:1}"]),
        (
            {"$ref": "#/$defs/node"},
            ["{v:1,next:{v:2,next:null}}", "{v:1}"],
            ["{next:null}", "{v:1,next:{}}"],
        ),
        ({"properties": {"x": NUMBER, "y": NUMBER}, "type": "object"}, SOME, ["{x:1,x:1,x:1}"]),
    ],
)
def test_a_value_fits_its_schema_however_deep(
    schema: Any,  # noqa: ANN401 - a schema may be anything
    right: list[str],
    wrong: list[str],
) -> None:
    one = {"properties": {"a": schema}, "required": ["a"], "$defs": DEFS}
    tools = offered([tool("f", one)])
    grammar = grammar_of("gemma4", "", tools)
    for value in right:
        assert fits(grammar, CALL % value), value
        [(_, arguments, whole)] = read(GEMMA.parser, [CALL % value], tools).calls
        assert whole
        assert json.loads(arguments).keys() == {"a"}
    assert not [value for value in wrong if fits(grammar, CALL % value)]


def test_what_no_value_fits_is_refused() -> None:
    endless = {"type": "object", "properties": {"n": {"$ref": "#/$defs/e"}}, "required": ["n"]}
    schema = {"properties": {"a": {"$ref": "#/$defs/e"}}, "required": ["a"]}
    with pytest.raises(WireError, match="nested too deeply"):
        grammar_of("gemma4", "", offered([tool("f", schema | {"$defs": {"e": endless}})]))


def test_a_large_schema_that_refers_to_itself_is_followed_less_far() -> None:
    lists = {
        key: {"type": "array", "items": {"$ref": "#/$defs/f"}} for key in ("and", "or", "not")
    }
    term = {"properties": {**lists, "field": {"type": "string"}, "value": {}}, "type": "object"}
    schema = {"properties": {"a": {"$ref": "#/$defs/f"}}, "$defs": {"f": term}}
    grammar = grammar_of("gemma4", "", offered([tool("f", schema)]))
    assert fits(grammar, CALL % '{and:[{value:1},{field:<|"|>x<|"|>}]}')
    assert not fits(grammar, CALL % "{and:[{field:1}]}")


@pytest.mark.parametrize("needed", [[], ["a"]])
def test_a_schema_with_too_many_ways_through_it_is_refused(needed: list[str]) -> None:
    ways = {"anyOf": [{"$ref": f"#/$defs/{n}"} for n in range(30)]}
    lists = {"type": "array", "items": ways, "minItems": len(needed)}
    schema = {"properties": {"a": ways}, "required": needed, "$defs": {}}
    schema["$defs"] = {str(n): lists for n in range(30)}
    with pytest.raises(WireError, match="over 262144 characters"):
        grammar_of("gemma4", "", offered([tool("f", schema)]))


def test_more_ways_of_one_of_than_can_be_told_apart_are_refused() -> None:
    """Each is compared with each: 300 took 13 seconds."""

    def of(count: int) -> OfferedFunctions:
        kinds = [{"properties": {"t": {"const": n}}, "required": ["t"]} for n in range(count)]
        closed = [{"type": "object", **one, "additionalProperties": False} for one in kinds]
        members = {"properties": {"a": {"oneOf": closed}}, "required": ["a"]}
        return offered([tool("f", {**members, "additionalProperties": False})])

    assert fits(grammar_of("gemma4", "", of(64)), "<|tool_call>call:f{a:{t:63}}<tool_call|>")
    with pytest.raises(WireError, match="over 262144 characters"):
        grammar_of("gemma4", "", of(65))


@pytest.mark.parametrize("schema", [{"type": "object"}, {"$ref": "#/$defs/any"}])
def test_what_no_schema_describes_is_written_as_it_can_be_read(schema: dict[str, Any]) -> None:
    tools = offered([tool("f", schema | {"$defs": {"any": {"type": "object"}}})])
    grammar = grammar_of("gemma4", "", tools)
    call = "<|tool_call>call:f%s<tool_call|>"
    for right in ("{}", '{a:{b:[1,<|"|>}<|"|>,null],c:{}},d:true}', "{a:{b:{c:1}}}"):
        assert fits(grammar, call % right), right
        assert read(GEMMA.parser, [call % right], tools).calls[0][2]
    wrong = ("{a:}}{", "{a}", "{{}}", "{a:1}}", "{a:[}]}", "{a:x}", "{a:01}", "{a:1,}")
    assert not [one for one in wrong if fits(grammar, call % one)]
