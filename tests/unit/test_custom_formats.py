"""Custom tools whose text has a form: what holds it, and who is told that nothing does."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from api.errors import BadRequest
from api.request_parser import RequestParser
from api.responses.bodies import read_responses
from api.responses.to_chat import FIELD_NAMES, chat_of
from api.served import ServedModel, read_whole_request
from api.text.tokenizing import TextCodec
from api.tools.dialects.known import DIALECTS
from api.tools.functions import as_functions
from api.tools.inputs import CustomInputReader
from api.tools.structured import StructuredOutput, calls_or_structured
from api.tools.tool_choice import read_tools
from engine.grammars.checking import GrammarChecker
from engine.request import LONGEST_SOURCE, Grammar
from tests.fakes.asking import chat
from tests.fakes.text import TEMPLATE, byte_level, served
from tests.fakes.tools import TOOLS, read, special
from tests.unit.test_calls_beside_forms import FAMILIES, FORM, fits, read_by, walked
from tests.unit.test_forms_beside_tools import OSS
from tests.unit.test_strict_functions import CALL, HERMES

PATTERN = '[a-c"\\\\]{2}\n?'
LARK = 'start: line{1,2} | "none"\nline: ("+" | "-") /["<a-c\\\\]{0,3}/ LF\n%import common.LF'
AS_PATTERN = r'(?:[+-]["<a-c\\]{0,3}\n){1,2}|none'
NESTED = 'start: "(" start? ")"'
GRAMMARS = GrammarChecker()
SAMPLES = 30


@pytest.fixture(autouse=True, scope="module")
def checked() -> Iterator[None]:
    """No process is left that checks grammars."""
    with GRAMMARS:
        yield


def door(codec: TextCodec = HERMES) -> ServedModel:
    return replace(served(codec), grammars=GRAMMARS)


def custom(definition: str = LARK, syntax: str = "lark", name: str = "run") -> dict[str, Any]:
    form = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
    return {"type": "custom", "custom": {"name": name, "format": form}}


LINES, LETTERS = custom(), custom(PATTERN, "regex")


async def grammar_of(fields: dict[str, Any], codec: TextCodec = HERMES) -> Grammar:
    asked = await chat(fields, door=door(codec))
    grammar = asked.calls[0].request.sampling.grammar
    assert grammar
    return grammar


async def refused(fields: dict[str, Any], codec: TextCodec = HERMES) -> BadRequest:
    with pytest.raises(BadRequest) as error:
        await chat(fields, door=door(codec))
    return error.value


def given_of(arguments: str) -> str:
    return CustomInputReader().read(arguments)


@pytest.mark.parametrize(("tool", "pattern"), [(LINES, AS_PATTERN), (LETTERS, PATTERN)])
@pytest.mark.parametrize(("name", "template"), FAMILIES)
def test_whatever_the_dialect_its_grammar_leaves_texts_of_the_form(
    name: str, template: str, tool: dict[str, Any], pattern: str
) -> None:
    use = read_tools([tool], None, False)
    assert use
    grammar, found = (
        calls_or_structured(StructuredOutput(FORM), use, DIALECTS[name], template),
        set[str](),
    )
    assert grammar
    for seed in range(SAMPLES):
        for called, arguments, whole in read_by(name, walked(grammar, seed), use.offered).calls:
            assert (called, whole) == ("run", True)
            given = given_of(arguments)
            assert re.fullmatch(pattern, given), given
            found.add(given)
    assert len(found) > 3


@pytest.mark.parametrize(
    ("tool", "good", "bad"), [(LINES, '+"a\n-\n', "+a"), (LETTERS, 'a"\n', "a\n")]
)
@pytest.mark.parametrize("choice", ["required", "allowed", "named"])
async def test_a_call_that_has_to_be_made_has_a_text_of_the_form(
    tool: dict[str, Any], good: str, bad: str, choice: str
) -> None:
    one = {"type": "custom", "custom": {"name": "run"}}
    some = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [one]}}
    chosen = {"named": one, "allowed": some}.get(choice, choice)
    grammar = await grammar_of({"tools": [tool, *TOOLS], "tool_choice": chosen})
    for text, fitting in ((good, True), (bad, False)):
        said = json.dumps({"input": text})
        if choice != "named":
            said = f'[{{"name": "run", "parameters": {said}}}]'
        assert fits(grammar, said) is fitting
    clock = f'[{{"name": "run", "parameters": {json.dumps({"input": good})}}}, '
    clock += '{"name": "clock", "parameters": {}}]'
    assert fits(grammar, clock) is (choice == "required")


@pytest.mark.parametrize(
    ("tool", "good", "bad"), [(LINES, '+"a\n-\n', "+a"), (LETTERS, 'a"\n', "a\n")]
)
async def test_so_has_one_that_the_model_makes_of_itself(
    tool: dict[str, Any], good: str, bad: str
) -> None:
    for fields in ({}, {"response_format": {"type": "json_object"}}):
        grammar = await grammar_of({"tools": [tool, *TOOLS], **fields})
        assert fits(grammar, CALL.format("run", json.dumps({"input": good})))
        assert not fits(grammar, CALL.format("run", json.dumps({"input": bad})))
        assert fits(grammar, CALL.format("clock", '{"a": 1}')) is (not fields)


def test_a_model_is_told_the_form() -> None:
    for tool, said in ((LINES, LARK), (LETTERS, PATTERN)):
        [function] = as_functions([tool])
        assert said in function["function"]["parameters"]["properties"]["input"]["description"]


async def test_what_cannot_be_called_is_held_to_nothing() -> None:
    asked = await chat({"tools": [custom("("), *TOOLS], "tool_choice": "none"}, door=door())
    assert asked.calls[0].request.sampling.grammar is None
    clock = [{"type": "function", "function": {"name": "clock"}}]
    some = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": clock}}
    asked = await chat({"tools": [custom("("), *TOOLS], "tool_choice": some}, door=door())
    assert asked.calls[0].request.sampling.grammar is None


@pytest.mark.parametrize(
    ("tool", "why"),
    [
        (custom("start: ("), "lark: line 1"),
        (custom('start: "a" <b>'), "<b> is not supported"),
        (custom("("), "lark: line 1"),
        (custom("a)|(b", "regex"), "regex"),
        (custom("a(?=b)", "regex"), "look-around"),
        (custom("[^\\s\\S]", "regex"), "no text is allowed"),
    ],
)
@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_a_bad_form_is_refused_with_the_reason(
    tool: dict[str, Any], why: str, choice: str
) -> None:
    error = await refused({"tools": [*TOOLS, tool], "tool_choice": choice})
    assert error.param == "tools[2].custom.format"
    assert str(error).startswith(error.param)
    assert why in str(error)


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"syntax": "gbnf", "definition": "a"}, "syntax"),
        ({"syntax": "lark", "definition": ""}, "definition"),
        ({"syntax": "lark", "definition": "a" * (LONGEST_SOURCE + 1)}, "definition"),
        ({"syntax": "lark"}, "definition"),
        ({"definition": "a"}, "syntax"),
    ],
)
async def test_a_form_that_is_none_is_refused_by_its_place(
    form: dict[str, Any], param: str
) -> None:
    tool = {"type": "custom", "custom": {"name": "run", "format": {"type": "grammar"}}}
    tool["custom"]["format"]["grammar"] = form  # type: ignore[index]
    assert (await refused({"tools": [tool]})).param == f"tools[0].custom.format.grammar.{param}"


async def test_where_nothing_holds_calls_it_is_refused() -> None:
    spelt = special("<arg_key>", end="<tool_call>{# <arg_key> #}")
    structured = {"structured_outputs": {"regex": "a+"}}
    json_form = {"response_format": {"type": "json_object"}}
    for codec, fields in ((spelt, {}), (HERMES, structured), (OSS, {}), (OSS, json_form)):
        error = await refused({"tools": [*TOOLS, LETTERS], **fields}, codec)
        assert error.param == "tools[2].custom.format"
        assert "nothing holds" in str(error)
        asked = {"tools": [*TOOLS, LETTERS], "tool_choice": "required"}
        assert (await grammar_of(asked, codec)).kind == "json_schema"


async def test_where_texts_stand_as_they_are_a_grammar_must_not_recur() -> None:
    coder = byte_level(TEMPLATE + "<tool_call><function=<parameter=")
    tools = {"tools": [*TOOLS, custom(NESTED)]}
    error = await refused(tools, coder)
    assert error.param == "tools[2].custom.format"
    assert "recurs" in str(error)
    assert fits(await grammar_of(tools), CALL.format("run", '{"input": "(())"}'))
    assert fits(
        await grammar_of({**tools, "tool_choice": "required"}, coder),
        '[{"name": "run", "parameters": {"input": "(())"}}]',
    )


async def test_a_response_has_it_beside_the_name() -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": LARK}
    tools = [{"type": "custom", "name": "run", "format": form}]
    body = read_responses(msgspec.json.encode({"input": "hi", "tools": tools}))
    asked = await RequestParser(door(), read_whole_request).parse_chat(chat_of(body), "id", 1)
    grammar = asked.calls[0].request.sampling.grammar
    assert grammar
    assert fits(grammar, CALL.format("run", json.dumps({"input": "+a\n"})))
    assert not fits(grammar, CALL.format("run", '{"input": "+a"}'))
    for broken, param in (("definition", "definition"), ("syntax", "syntax")):
        tools = [{"type": "custom", "name": "run", "format": {**form, broken: 5}}]
        body = read_responses(msgspec.json.encode({"input": "hi", "tools": tools}))
        with pytest.raises(BadRequest) as error:
            await RequestParser(door(), read_whole_request).parse_chat(chat_of(body), "id", 1)
        assert FIELD_NAMES.translate(error.value).param == f"tools[0].format.{param}"


def test_a_text_is_told_as_any_custom_tools() -> None:
    text = CALL.format("run", json.dumps({"input": "+a\n"}))
    [(name, arguments, whole)] = read(DIALECTS["hermes"].parser, [text]).calls
    assert (name, given_of(arguments), whole) == ("run", "+a\n", True)
