"""An answer that may call, and has a form if it does not, is read as its grammar leaves it."""

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher

from api.tools.dialects.invoke import SECTIONS, WORD
from api.tools.dialects.known import DIALECTS
from api.tools.structured import StructuredOutput, calls_or_content, calls_or_structured
from api.tools.tool_choice import OfferedFunctions, ToolSettings
from api.wire import WireError
from engine.grammars.byte_tokens import END, byte_tokenizer
from engine.grammars.sources import limits, to_llguidance
from engine.request import Grammar
from tests.fakes.tools import Read, offered, read, tool

TOKENIZER = byte_tokenizer()
CITY = {"type": "string", "enum": ["Paris", "Rome"]}
POINT = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2}
TRIP: dict[str, Any] = {
    "$defs": {"point": POINT},
    "properties": {"to": CITY, "at": {"$ref": "#/$defs/point"}, "far": {"type": "boolean"}},
    "required": ["to", "at"],
    "additionalProperties": False,
}
TOOLS = offered([tool("trip", TRIP), tool("clock")])
NOTE = offered(
    [tool("note", {"properties": {"text": {"type": "string"}}, "required": ["text"]})]
)
ANY = offered([tool("any", {"type": "object"})])
OK = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
FORM = Grammar("json_schema", json.dumps(OK))
WRITING = [name for name, one in DIALECTS.items() if one.write]
TEMPLATES = {
    "internlm": ["", '"arguments": '],
    "longcat": ["", "<longcat_arg_key>"],
    "mistral": ["", "[ARGS]"],
    "glm45": ["", "</arg_key><arg_value>"],
    "deepseek_v32": ["", "function_calls"],
}
AS_TEXT = {
    *("deepseek_v32", "deepseek_v41", "functiongemma", "gemma4", "glm45", "glm47", "hy3"),
    *("hy_v4", "kimi_k3", "minimax_m2", "minimax_m3", "qwen3_coder", "seed_oss", "step3"),
}
FAMILIES = [(name, one) for name in WRITING for one in TEMPLATES.get(name, [""])]
SAMPLES = 40


def grammar_of(
    name: str,
    template: str = "",
    tools: OfferedFunctions = TOOLS,
    *,
    parallel: bool = True,
    loose: Sequence[str] = (),
) -> Grammar:
    use = ToolSettings(tools, "auto", parallel=parallel)
    grammar = calls_or_structured(
        StructuredOutput(FORM, any_object=loose), use, DIALECTS[name], template
    )
    assert grammar
    return grammar


def walked(grammar: Grammar, seed: int) -> str:
    """A text that it allows, by chance."""
    dice = random.Random(seed)
    matcher = LLMatcher(TOKENIZER, to_llguidance(grammar), log_level=0, limits=limits())
    said = bytearray()
    while True:
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        ways = np.unpackbits(mask, bitorder="little").nonzero()[0].tolist()
        way = END if END in ways and dice.random() < 0.5 else dice.choice(ways)
        if way == END:
            return said.decode()
        said.append(way)
        assert matcher.consume_token(way)


def fits(grammar: Grammar, text: str) -> bool:
    matcher = LLMatcher(TOKENIZER, to_llguidance(grammar), log_level=0, limits=limits())
    assert not matcher.is_error(), matcher.get_error()
    letters = list(text.encode())
    return matcher.try_consume_tokens(letters) == len(letters) and matcher.is_accepting()


def read_by(name: str, text: str, tools: OfferedFunctions = TOOLS) -> Read:
    return read(calls_or_content(DIALECTS[name]), [*text], tools)


def check_trip(arguments: Mapping[str, Any]) -> None:
    assert arguments.keys() <= {"to", "at", "far"}
    assert arguments["to"] in CITY["enum"]
    assert [*map(type, arguments["at"])] == [int, int]
    assert isinstance(arguments.get("far", True), bool)


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize(("name", "template"), FAMILIES)
def test_what_a_grammar_leaves_is_calls_or_the_form(
    name: str, template: str, parallel: bool
) -> None:
    grammar, most, forms = grammar_of(name, template, parallel=parallel), 0, 0
    for seed in range(SAMPLES):
        text = walked(grammar, seed)
        found = read_by(name, text)
        if not found.calls:
            assert json.loads(found.content).keys() == {"ok"}
            forms += 1
            continue
        assert not found.content.strip(), text
        most = max(most, len(found.calls))
        for called, arguments, whole in found.calls:
            assert whole
            if called == "trip":
                check_trip(json.loads(arguments))
            else:
                assert (called, json.loads(arguments)) == ("clock", {})
    assert 0 < forms < SAMPLES
    assert (most > 1) == parallel


@pytest.mark.parametrize("text", ["", "two\nlines </par", '"quoted" \\ {', "é 東"])
@pytest.mark.parametrize(("name", "template"), FAMILIES)
def test_a_text_may_be_any(name: str, template: str, text: str) -> None:
    """Found by what stands before it, as the model would write it, and behind it."""
    grammar = grammar_of(name, template, NOTE, parallel=False)
    as_text = name in AS_TEXT or "arg_key" in template
    written = text if as_text else json.dumps(text, ensure_ascii=False)
    before, behind = around(grammar, "note", as_text)
    answer = f"{before}{written}{behind}"
    assert fits(grammar, answer), answer
    [(called, arguments, whole)] = read_by(name, answer, NOTE).calls
    assert (called, json.loads(arguments), whole) == ("note", {"text": text}, True)


def around(grammar: Grammar, word: str, as_text: bool) -> tuple[str, str]:
    """What of a call stands before the value of its one argument, and what behind it."""
    source = json.loads(grammar.source)["format"]["elements"][1]
    before, behind, found = "", "", False
    for one in leaves(source):
        if one["type"] == "json_schema" and one["json_schema"]["type"] == "string":
            found = True
        elif one["type"] == "json_schema":
            before, found = before + '{"text": ', True
            behind = "}"
        elif one["type"] == "any_text":
            found = True
        elif one["type"] == "regex":
            before += "0"
        elif found:
            behind += said(one)
        else:
            before += said(one)
    assert found
    assert word in before
    assert not as_text or '{"text"' not in before
    return before, behind


def said(one: Mapping[str, Any]) -> str:
    return str(one.get("value") or one.get("token") or "")


def leaves(one: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    match one["type"]:
        case "sequence":
            return [leaf for part in one["elements"] for leaf in leaves(part)]
        case "or":
            return leaves(one["elements"][0])
        case "tag":
            ends = {"type": "const_string", "value": one["end"]}
            begin = {"type": "const_string", "value": one["begin"]}
            return [begin, *leaves(one["content"]), ends]
    return [one]


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "glm45", "deepseek_v32"])
def test_a_function_without_a_schema_that_can_be_kept_to_takes_any_object(name: str) -> None:
    loose = grammar_of(name, "", TOOLS, loose=["trip"])
    both = grammar_of(name, "", ANY)
    section = (
        '<tool_calls>\n<invoke name="{}">\n<parameter name="x" string="false">[1]</parameter>\n'
        "</invoke>\n</tool_calls>"
    )
    calls = {
        "hermes": '<tool_call>\n{{"name": "{}", "arguments": {{"x": [1]}}}}\n</tool_call>',
        "qwen3_coder": "<tool_call>\n<function={}>\n<parameter=x>\n[1]\n</parameter>\n"
        "</function>\n</tool_call>",
        "glm45": "<tool_call>{}\n<arg_key>x</arg_key>\n<arg_value>[1]</arg_value>\n"
        "</tool_call>",
        "deepseek_v32": section.replace("<", f"<{WORD}").replace(f"<{WORD}/", f"</{WORD}"),
    }
    for grammar, called, tools in ((loose, "trip", TOOLS), (both, "any", ANY)):
        answer = calls[name].format(called)
        assert fits(grammar, answer)
        assert read_by(name, answer, tools).calls == [(called, '{"x": [1]}', True)]
    assert not fits(grammar_of(name), calls[name].format("trip"))


@pytest.mark.parametrize("name", [one for one in WRITING if one != "llama3_json"])
def test_marks_within_the_form_are_part_of_it(name: str) -> None:
    text = json.dumps({"ok": "<tool_call>clock</tool_call>[TOOL_CALLS]clock[ARGS]{}"})
    assert read_by(name, text) == Read(text, [])
    assert read_by(name, f"\n\n{text}") == Read(f"\n\n{text}", [])


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("lfm2", "<|tool_call_start|>[f({})]<|tool_call_end|>"),
        ("gemma4", "<|tool_call>call:f{{{}}}<tool_call|>"),
    ],
)
def test_what_nobody_needs_may_be_left_out_and_comes_once(name: str, form: str) -> None:
    number = {"type": "integer"}
    schema = {"properties": {"a": number, "b": number, "c": number}}
    grammar, sign = (
        grammar_of(name, "", offered([tool("f", schema)])),
        "=" if name == "lfm2" else ":",
    )
    between = ", " if name == "lfm2" else ","
    for keys in ("", "a", "b", "c", "ab", "ac", "bc", "abc"):
        assert fits(grammar, form.format(between.join(f"{key}{sign}1" for key in keys)))
    for keys in ("aa", "ba", "abb", "d"):
        assert not fits(grammar, form.format(between.join(f"{key}{sign}1" for key in keys)))


def test_lists_of_a_gemma_are_as_long_as_they_have_to_be() -> None:
    for least, most, lengths in (
        (0, 2, {0, 1, 2}),
        (2, -1, {2, 3, 4}),
        (0, 0, {0}),
        (1, 1, {1}),
    ):
        bounds = {"minItems": least, **({"maxItems": most} if most >= 0 else {})}
        schema = {"properties": {"a": {"type": "array", "items": CITY, **bounds}}}
        grammar = grammar_of("gemma4", "", offered([tool("f", schema)]))
        city = '<|"|>Rome<|"|>'
        calls = {
            n: f"<|tool_call>call:f{{a:[{','.join([city] * n)}]}}<tool_call|>" for n in range(5)
        }
        assert {n for n, one in calls.items() if fits(grammar, one)} == lengths


def test_a_section_of_deepseeks_has_the_name_that_the_template_has() -> None:
    for template, which in (("function_calls", 0), ("", 1)):
        grammar = grammar_of("deepseek_v32", template)
        for place, section in enumerate(SECTIONS):
            call = f'<{WORD}invoke name="clock">\n</{WORD}invoke>\n'
            answer = f"<{WORD}{section}>\n{call}</{WORD}{section}>"
            assert fits(grammar, answer) is (place == which)


def test_an_argument_whose_schema_lies_elsewhere_is_any_text() -> None:
    schema = {"properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}}}
    grammar = grammar_of("qwen3_coder", "", offered([tool("f", schema)]))
    for value in ("1", "x"):
        call = f"<function=f>\n<parameter=b>\n{value}\n</parameter>\n</function>"
        assert fits(grammar, f"<tool_call>\n{call}\n</tool_call>")


def test_gpt_oss_calls_before_what_a_grammar_holds() -> None:
    use = ToolSettings(TOOLS, "auto")
    assert calls_or_structured(StructuredOutput(FORM), use, DIALECTS["openai"], "") is None


def test_line_breaks_may_come_first_behind_reasoning_alone() -> None:
    use, call = (
        ToolSettings(TOOLS, "auto"),
        "<tool_call>\n<function=clock>\n</function>\n</tool_call>",
    )
    for behind in (False, True):
        grammar = calls_or_structured(
            StructuredOutput(FORM, behind), use, DIALECTS["qwen3_coder"], ""
        )
        assert grammar
        for answer in (call, '{"ok": true}'):
            assert fits(grammar, answer)
            assert fits(grammar, f"\n\n{answer}") is behind
            assert not fits(grammar, f"\n\n\n{answer}")


@pytest.mark.parametrize("name", ["lfm2", "gemma4", "qwen3_coder"])
def test_no_grammar_is_written_that_is_longer_than_one_may_be(name: str) -> None:
    schema = {"properties": {f"key{n}": {"$ref": "#/$defs/a"} for n in range(800)}}
    known = {"$defs": {"a": {"enum": [*range(100)]}}}
    with pytest.raises(WireError, match="over 262144 characters"):
        grammar_of(name, "", offered([tool("f", schema | known)]))
