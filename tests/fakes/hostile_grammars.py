"""Grammars that are malformed, impossible, or made to take for ever."""

import json
from collections.abc import Mapping
from typing import Any

from engine.request import Grammar


def _nested(depth: int) -> str:
    return '{"type":"array","items":' * depth + "{}" + "}" * depth


def _bomb(depth: int) -> dict[str, Any]:
    """Every level names the one below four times."""
    below = [{"$ref": f"#/$defs/l{level}"} for level in range(depth)]
    levels: dict[str, Any] = {"l0": {"type": "object"}}
    for level, one in enumerate(below, start=1):
        levels[f"l{level}"] = {"allOf": [one, one], "properties": {"a": one, "b": one}}
    return {"$defs": levels, "$ref": f"#/$defs/l{depth}"}


def _product(keyword: str) -> dict[str, Any]:
    def option(i: int, j: int) -> dict[str, Any]:
        return {"type": "object", "properties": {f"p{i}_{j}": {"type": "string"}}}

    return {"allOf": [{keyword: [option(i, j) for j in range(6)]} for i in range(12)]}


SCHEMAS: Mapping[str, object] = {
    "anything but an object": 5,
    "false": False,
    "itself": {"$ref": "#"},
    "in circles": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    "elsewhere": {"$ref": "https://example.com/schema.json"},
    "a file": {"$ref": "file:///etc/passwd"},
    "nowhere": {"$ref": "#/$defs/nope"},
    "no integer": {"type": "integer", "minimum": 5, "maximum": 3},
    "no type": {"allOf": [{"type": "string"}, {"type": "number"}]},
    "no length": {"type": "string", "minLength": 10, "maxLength": 3},
    "no character": {"type": "string", "pattern": "^[^\\x00-\\U0010FFFF]$"},
    "required and forbidden": {"type": "object", "required": ["a"], "properties": {"a": False}},
    "no value": {"enum": []},
    "multiples": {"type": "integer", "multipleOf": 99_999_989},
    "tiny multiples": {"type": "number", "multipleOf": 1e-10, "minimum": 0, "maximum": 1e300},
    "bad pattern": {"type": "string", "pattern": "((("},
    "unknown type": {"type": "strnig"},
    "unknown format": {"type": "string", "format": "regex"},
    "unknown keyword": {"type": "array", "uniqueItems": True},
    "many patterns": {
        "type": "object",
        "patternProperties": {f".*a.{{{i}}}": {} for i in range(30)},
    },
    "any of many": _product("anyOf"),
    "one of many": _product("oneOf"),
    "bomb": _bomb(40),
    "large": {"type": "object", "properties": {f"p{i}": {} for i in range(5_000)}},
}
REFUSED: Mapping[str, Grammar] = {
    **{
        f"schema, {name}": Grammar("json_schema", json.dumps(schema))
        for name, schema in SCHEMAS.items()
    },
    "schema, empty": Grammar("json_schema", ""),
    "schema, cut off": Grammar("json_schema", "{"),
    "schema, deep": Grammar("json_schema", _nested(5_000)),
    "schema, too deep to fit": Grammar("json_schema", _nested(100_000)),
    "regex, open": Grammar("regex", "((("),
    "regex, half an escape": Grammar("regex", "a\\"),
    "regex, half an escape behind a whole one": Grammar("regex", "\\\\\\"),
    "regex, deep": Grammar("regex", "(" * 20_000 + "a" + ")" * 20_000),
    "regex, look-ahead": Grammar("regex", "(?=a)b"),
    "regex, back-reference": Grammar("regex", "(a)\\1"),
    "regex, impossible": Grammar("regex", "[^\\x00-\\U0010FFFF]"),
    "regex, huge": Grammar("regex", "a|" * 200_000),
    "regex, null": Grammar("regex", "a\0b"),
    "choice, no list": Grammar("choice", '"a"'),
    "choice, empty": Grammar("choice", "[]"),
    "choice, numbers": Grammar("choice", "[1]"),
    "choice, no text": Grammar("choice", '["\\ud800"]'),
    "choice, many": Grammar("choice", json.dumps([str(i) for i in range(20_000)])),
    "ebnf, empty": Grammar("ebnf", ""),
    "ebnf, without end": Grammar("ebnf", 'root ::= "a" root'),
    "ebnf, without root": Grammar("ebnf", 'x ::= "a"'),
    "ebnf, undefined": Grammar("ebnf", "root ::= nope"),
    "ebnf, twice": Grammar("ebnf", 'root ::= "a"\nroot ::= "b"'),
    "ebnf, deep": Grammar("ebnf", "root ::= " + "(" * 3_000 + '"a"' + ")" * 3_000),
    "ebnf, stars": Grammar("ebnf", 'root ::= "a"' + "*" * 10_000),
    "ebnf, open string": Grammar("ebnf", 'root ::= "a'),
    "ebnf, open class": Grammar("ebnf", "root ::= [a-z"),
    "ebnf, backwards": Grammar("ebnf", "root ::= [z-a]"),
    "ebnf, fewer than least": Grammar("ebnf", 'root ::= "a"{3,2}'),
    "ebnf, half a character": Grammar("ebnf", 'root ::= "\\ud800"'),
    "ebnf, long": Grammar(
        "ebnf", "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(5_000))
    ),
    "lark, no such grammar": Grammar("ebnf", "start: @other"),
    "lark, no such token": Grammar("ebnf", "start: <|end|> /a+/"),
    "lark, in circles": Grammar("ebnf", 'start: %json {"$ref": "#"}'),
    "tags, no JSON": Grammar("structural_tag", "x"),
    "tags, nothing": Grammar("structural_tag", "{}"),
    "tags, deep": Grammar(
        "structural_tag",
        '{"format":' + '{"type":"star","content":' * 5_000 + "1" + "}" * 5_001,
    ),
}
"""All of them are to be refused."""

ENDURED: Mapping[str, Grammar] = {
    "nested counts": Grammar("regex", "((((a{1,1000}){1,1000}){1,1000}){1,1000})"),
    "a huge count": Grammar("regex", "a{1,2000000000}"),
    "classic backtracking": Grammar("regex", "(a+)+(a+)+(a+)+b"),
    "many states": Grammar("regex", "(a|b)*a(a|b){60}"),
    "many words": Grammar("regex", "|".join(f"w{i}[a-z]*" for i in range(5_000))),
    "long text": Grammar("json_schema", '{"type": "string", "maxLength": 100000000}'),
    "many items": Grammar("json_schema", '{"type": "array", "minItems": 1000000}'),
    "ambiguous": Grammar("ebnf", 'root ::= root root root | "a" | ""'),
    "hidden left recursion": Grammar("ebnf", 'root ::= x root "a" | "b"\nx ::= "" | "c"'),
    "recursive counts": Grammar("ebnf", 'root ::= (("a" x){1,1000}){1,1000}\nx ::= "b" x | ""'),
}
"""These look bad and are served all the same, or else refused in time."""
