"""What texts each kind of grammar allows, and which it does not."""

import json
from typing import Any

import pytest
from llguidance import LLMatcher

from engine.errors import GrammarRefused
from engine.grammars.byte_tokens import byte_tokenizer
from engine.grammars.sources import limits, to_llguidance
from engine.request import Grammar

TOKENIZER = byte_tokenizer()
POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
JSON = {"type": "json_schema", "json_schema": POINT | {"additionalProperties": False}}


def allows(grammar: Grammar, text: str) -> bool:
    matcher = LLMatcher(TOKENIZER, to_llguidance(grammar), log_level=0, limits=limits())
    assert not matcher.is_error(), matcher.get_error()
    said = list(text.encode())
    return matcher.try_consume_tokens(said) == len(said) and matcher.is_accepting()


def claim(grammar: Grammar, these: list[str], not_those: list[str]) -> None:
    assert [text for text in these if not allows(grammar, text)] == []
    assert [text for text in not_those if allows(grammar, text)] == []


def tag(begin: str, content: dict[str, Any], *end: str) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": list(end)}


def const(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


TAGS = {
    "type": "triggered_tags",
    "triggers": ["<f="],
    "tags": [
        tag("<f=a>", JSON, "</f>"),
        tag("<f=b>", {"type": "regex", "pattern": "z+"}, "</f>"),
    ],
}


@pytest.mark.parametrize(
    ("source", "these", "not_those"),
    [
        ('root ::= "\\u0041" [\\u0042-\\u0043] # c', ["AB", "AC"], ["A", "AD"]),
        ('root ::= "a"{2,3} ("b" | "c")*', ["aa", "aaabcb"], ["a", "aaaa"]),
        ('root ::= ("a" | "b"){0,2} "\\""', ['"', 'ab"'], ['abb"']),
        ('root ::= [^"\\\\]+ "/" [/]', ["x//", "é//"], ['"//', "//"]),
        ("root ::= [\\]x-]+ [a-]", ["]x-a", "--"], ["ab"]),
        ('root ::= "" | .', ["", "\n", "é"], ["ab"]),
        ('root ::=\n  "a" |\n  "b"\n', ["a", "b"], ["", "ab"]),
        ("root ::= fooBar foo_bar\nfooBar ::= [1]\nfoo_bar ::= [2]", ["12"], ["1"]),
        ('root ::= start\nstart ::= "x"', ["x"], [""]),
        ('root ::= "x"{0} "y"{0,0} "z"', ["z"], ["xz", "yz"]),
        ('root ::= "x"{0} a{0} a\na ::= "(" a "y"{0} ")" | "b"', ["b", "((b))"], ["xb", "bb"]),
        ('start: "a" b\nb: /[0-9]+/', ["a12"], ["a"]),
    ],
)
def test_gbnf_and_lark_mean_what_they_say(
    source: str, these: list[str], not_those: list[str]
) -> None:
    claim(Grammar("ebnf", source), these, not_those)


@pytest.mark.parametrize(
    ("source", "these", "not_those"),
    [
        ('root ::= [a-z]* "a"', ["a", "ba", "baaba"], ["", "b"]),
        ('root ::= "ab" "c" | "a" "bd"', ["abc", "abd"], ["ab"]),
        ('root ::= "(" root ")" | [a-z]* "a"', ["a", "((bba))"], ["(b)", "(a"]),
        (
            'root ::= term ("+" term)*\nterm ::= num | "(" root ")"\nnum ::= [0-9]+',
            ["1", "1+22", "(1+2)+(3)"],
            ["1+", "(1", "1++2"],
        ),
    ],
)
def test_no_text_of_a_gbnf_is_lost_to_the_longest_match(
    source: str, these: list[str], not_those: list[str]
) -> None:
    claim(Grammar("ebnf", source), these, not_those)


def test_what_never_ends_is_cut_off() -> None:
    grammar = Grammar("ebnf", 'root ::= "a" | "b" x | "c" x?\nx ::= "x" x')
    claim(grammar, ["a", "c"], ["b", "bx", "cx"])


def test_a_regex_is_of_the_whole_answer() -> None:
    claim(Grammar("regex", "[a-z]*a|\\d{2}"), ["ba", "12"], ["b", "1", "12a"])
    claim(Grammar("regex", "^a/b$"), ["a/b"], ["a"])
    claim(Grammar("regex", ""), [""], ["a"])


def test_a_choice_is_of_any_strings() -> None:
    strings = ["ab", "abc", "", 'é😀\n"/\\', "\x01\x7f"]
    claim(Grammar("choice", json.dumps(strings)), strings, ["a", "abcd"])


def test_json() -> None:
    claim(Grammar("json_object"), ["{}", '{"a":[1,{"b":null}]}'], ["[]", "{", "1"])
    claim(Grammar("json_schema", "true"), ["1", '"a"', "[]"], ["{"])
    claim(Grammar("json_schema", json.dumps(JSON["json_schema"])), ['{"x": 1}'], ["{}"])


@pytest.mark.parametrize("begin", ["", "<f>"])
def test_json_has_room_to_breathe_and_not_for_ever(begin: str) -> None:
    grammar = Grammar("json_schema", json.dumps(JSON["json_schema"]))
    if begin:
        layout = {"format": tag(begin, JSON, "")}
        grammar = Grammar("structural_tag", json.dumps(layout))
    these = ['{"x":1}', '{ "x" : 1 }', '{\n    "x": 1\n}', '{\r\n\t"x": 1}']
    those = ['{  "x": 1}', '{\n\n"x": 1}', '{"x":1}' + "\n", "{\n" + " " * 40 + '"x": 1}']
    claim(grammar, [begin + text for text in these], [begin + text for text in those])


@pytest.mark.parametrize(
    ("layout", "these", "not_those"),
    [
        (tag("<f>", JSON, "</f>"), ['<f>{"x":1}</f>'], ['<f>{"x":1}', '{"x":1}']),
        (
            tag("<f>", {"type": "any_text"}, "</f>", "</g>"),
            ["<f></f>", "<f>ab</g>"],
            ["<f>", "<f>a</f>b"],
        ),
        (
            tag("<f>", {"type": "grammar", "grammar": 'root ::= "a" root? "b"'}, "</f>"),
            ["<f>aabb</f>"],
            ["<f>aab</f>"],
        ),
        (
            TAGS,
            ["", "hello", 'hi <f=a>{"x":1}</f> there <f=b>zz</f>!', "<f=b>z</f><f=b>z</f>"],
            ["hi <f=", "hi <f=c></f>", "<f=a>{}</f>", "<f=b>zz"],
        ),
        (TAGS | {"at_least_one": True}, ["<f=b>z</f> then"], ["", "hi", "hi <f=b>z</f>"]),
        (TAGS | {"stop_after_first": True}, ["", "a<f=b>z</f>"], ["a<f=b>z</f>b"]),
        (
            TAGS | {"stop_after_first": True, "at_least_one": True},
            ["<f=b>z</f>"],
            ["", "a<f=b>z</f>", "<f=b>z</f>x"],
        ),
        (
            {"type": "sequence", "elements": [tag("<t>", {"type": "any_text"}, "</t>"), TAGS]},
            ["<t>a</t>b<f=b>z</f>"],
            ["b", "<t>a"],
        ),
        (
            {"type": "sequence", "elements": [{"type": "any_text"}, const("END"), JSON]},
            ['a bEND{"x":3}'],
            ["a b", "END"],
        ),
        (
            {"type": "tags_with_separator", "tags": TAGS["tags"], "separator": ","},
            ["", "<f=b>z</f>", "<f=b>z</f>,<f=b>z</f>"],
            ["<f=b>z</f>,", ","],
        ),
        (
            {"type": "sequence", "elements": [{"type": "token", "token": "<|f|>"}, const("!")]},
            ["<|f|>!"],
            ["!", "<|f|>"],
        ),
        (
            {"type": "or", "elements": [JSON, {"type": "any_text", "excludes": ["bad"]}]},
            ['{"x":1}', "hello"],
            ["a bad b"],
        ),
        (
            {
                "type": "sequence",
                "elements": [
                    {"type": "optional", "content": const("a")},
                    {"type": "plus", "content": const("b")},
                    {"type": "star", "content": const("c")},
                    {"type": "repeat", "min": 0, "max": 0, "content": const("x")},
                    {"type": "repeat", "min": 1, "max": 2, "content": const("d")},
                ],
            },
            ["bd", "abbccdd"],
            ["ad", "bddd", "bc"],
        ),
    ],
)
def test_structural_tags(layout: object, these: list[str], not_those: list[str]) -> None:
    source = json.dumps({"type": "structural_tag", "format": layout})
    claim(Grammar("structural_tag", source), these, not_those)


FOREIGN = {  # as OpenAPI and pydantic have them; and where "format" is no keyword
    "type": "object",
    "properties": {
        "a": {"type": "string", "format": "path"},
        "format": {"$ref": "#/$defs/id"},
        "b": {"anyOf": [{"format": "byte", "type": "string"}, {"type": "null"}]},
        "c": {"type": "array", "items": {"format": "password", "type": "string"}},
        "d": {"const": {"format": "path"}},
    },
    "$defs": {"id": {"type": "integer", "format": "int64"}},
    "required": ["a", "format", "b", "c", "d"],
}
FITS = '{"a":"x","format":5,"b":null,"c":["y"],"d":{"format":"path"}}'


def test_a_format_that_json_schema_does_not_define_asks_for_nothing() -> None:
    others = [FITS.replace("5", '"5"'), FITS.replace('{"format":"path"}', "{}")]
    claim(Grammar("json_schema", json.dumps(FOREIGN)), [FITS], others)
    layout = {"type": "json_schema", "json_schema": FOREIGN}
    claim(Grammar("structural_tag", json.dumps({"format": layout})), [FITS], others)


def test_a_format_that_json_schema_defines_is_honoured_or_refused() -> None:
    known, unknown = ({"type": "string", "format": name} for name in ("date", "regex"))
    claim(Grammar("json_schema", json.dumps(known)), ['"2026-01-31"'], ['"x"'])
    matcher = LLMatcher(
        TOKENIZER, to_llguidance(Grammar("json_schema", json.dumps(unknown))), log_level=0
    )
    assert "Unknown format: regex" in matcher.get_error()


def test_structural_tags_of_the_older_form() -> None:
    structure = {"begin": "<f=a>", "schema": JSON["json_schema"], "end": "</f>"}
    source = {"type": "structural_tag", "structures": [structure], "triggers": ["<f="]}
    grammar = Grammar("structural_tag", json.dumps(source))
    claim(grammar, ["", 'x<f=a>{"x":1}</f>y'], ["<f=b>", "<f=a>{}</f>"])


@pytest.mark.parametrize(
    "layout",
    [
        {"type": "nope"},
        {"type": "token", "token": 5},
        {"type": "token", "token": ""},
        {"type": "json_schema", "json_schema": {}, "style": "qwen_xml"},
        {"type": "any_text", "max_tokens": 5},
        TAGS | {"triggers": ["<g="]},
        TAGS | {"tags": []},
        {"type": "sequence", "elements": [{"type": "any_text"}, JSON]},
        {"type": "star", "content": {"type": "any_text"}},
        {"type": "repeat", "min": 2, "max": 1, "content": const("a")},
        {"type": "or", "elements": []},
    ],
)
def test_structural_tags_that_cannot_be_honoured_are_refused(layout: object) -> None:
    with pytest.raises(GrammarRefused, match="structural_tag"):
        to_llguidance(Grammar("structural_tag", json.dumps({"format": layout})))
