"""A refusal of a grammar speaks of what the client sent, and of nothing of llguidance's."""

import json
from typing import Any

import pytest

from engine.errors import GrammarRefused
from engine.grammars.byte_tokens import byte_tokenizer
from engine.grammars.examining import examine
from engine.grammars.explaining import DEEPEST, OVERLAP
from engine.request import Grammar

TOKENIZER = byte_tokenizer()
OVERLAPPING = {"oneOf": [{"type": "string"}, {"type": "string", "minLength": 2}]}
LOOP = {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}
APART = {"oneOf": [{"type": "string"}, {"type": "integer"}]}
BAD_TEXT = {"type": "string", "pattern": "a(b"}


def refused(kind: str, source: object) -> str:
    text = source if isinstance(source, str) else json.dumps(source)
    with pytest.raises(GrammarRefused) as refusal:
        examine(Grammar(kind, text), TOKENIZER)  # type: ignore[arg-type]
    return str(refusal.value)


def tag(**content: Any) -> dict[str, Any]:  # noqa: ANN401  JSON of any shape
    return {"type": "structural_tag", "format": content}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels - 1):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (OVERLAPPING, "#/oneOf"),
        (
            {"properties": {"x": APART, "y": {"items": OVERLAPPING}}},
            "#/properties/y/items/oneOf",
        ),
        ({"$ref": "#/$defs/B", "$defs": {"B": OVERLAPPING}}, "#/$defs/B/oneOf"),
        ({"anyOf": [{"type": "null"}, OVERLAPPING]}, "#/anyOf/1/oneOf"),
        ({"items": OVERLAPPING, "properties": {"a": OVERLAPPING}}, "#/items/oneOf"),
    ],
)
def test_a_one_of_that_overlaps_is_named(schema: dict[str, Any], place: str) -> None:
    assert refused("json_schema", schema) == f"json_schema: {place}: {OVERLAP}"
    within = place.replace("#", "#/format/json_schema")
    if "$ref" not in schema:
        tagged = tag(type="json_schema", json_schema=schema)
        assert refused("structural_tag", tagged) == f"structural_tag: {within}: {OVERLAP}"


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        },
    ],
)
def test_a_schema_that_is_only_a_reference_to_itself_is_told_so(schema: object) -> None:
    assert refused("json_schema", schema) == "json_schema: the schema refers only to itself"


def test_a_dead_end_of_another_kind_is_no_reference() -> None:
    rules = {"items": {"$ref": "#/items"}, "type": "array", "minItems": 1}
    assert refused("json_schema", rules) == "json_schema: no text is allowed"
    assert refused("regex", r"[^\s\S]") == "regex: no text is allowed"


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("a(b", "unclosed group, at character 2: `(b`"),
        ("a/b(c", "unclosed group, at character 4: `(c`"),
        (r"a\/b(c", "unclosed group, at character 5: `(c`"),
        (r"a\1", r"backreferences are not supported, at character 2: `\1`"),
        ("a\nb(c", "unclosed group, at character 4: `(c`"),
        ("abc(?i", "expected flag but got end of regex, at character 7"),
    ],
)
def test_a_regular_expression_is_shown_as_it_was_sent(pattern: str, why: str) -> None:
    assert refused("regex", pattern) == f"regex: {why}"


@pytest.mark.parametrize(
    ("kind", "source", "where"),
    [
        ("json_schema", {"properties": {"a": BAD_TEXT}}, "#/properties/a/pattern"),
        ("json_schema", {"patternProperties": {"a(b": {}}}, "the pattern `a(b`"),
        ("structural_tag", tag(type="regex", pattern="a(b"), "the pattern `a(b`"),
        (
            "structural_tag",
            tag(type="json_schema", json_schema=BAD_TEXT),
            "#/format/json_schema/pattern",
        ),
        ("ebnf", "start: x\nx: /a(b/", "the pattern `a(b`"),
    ],
)
def test_a_pattern_within_a_grammar_is_named(kind: str, source: object, where: str) -> None:
    why = "unclosed group, at character 2: `(b`"
    assert refused(kind, source) == f"{kind}: {where}: {why}"


def test_nothing_of_a_written_grammar_is_shown() -> None:
    schema = {"type": "integer", "minimum": 3, "maximum": 2}
    said = refused("structural_tag", tag(type="json_schema", json_schema=schema))
    assert said.startswith("structural_tag: ")
    assert "start:" not in said
    assert "x-guidance" not in said


def test_a_schema_may_be_nested_only_so_deep() -> None:
    why = f"objects and lists may be nested {DEEPEST} levels deep at most"
    examine(Grammar("json_schema", json.dumps(nested(DEEPEST))), TOKENIZER)
    for levels in (DEEPEST + 1, 400):
        assert refused("json_schema", nested(levels)) == f"json_schema: {why}"
    tagged = tag(type="json_schema", json_schema=nested(DEEPEST + 1))
    assert refused("structural_tag", tagged) == f"structural_tag: a schema's {why}"
    assert refused("json_schema", '{"items":' * 3000 + "1" + "}" * 3000).endswith(why)
    deep = '{"type":"star","content":' * 900 + '{"type":"any_text"}' + "}" * 900
    said = refused("structural_tag", f'{{"type":"structural_tag","format":{deep}}}')
    assert said == "structural_tag: formats too deep within each other"
