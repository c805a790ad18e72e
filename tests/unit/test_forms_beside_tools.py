"""What a chat with tools and a form is held to, and who is told that it cannot be."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from api.errors import BadRequest, TooBusy
from api.reasoning.formats import ReasoningParser
from api.served import ServedModel
from api.text.tokenizing import TextCodec
from api.text_requests import TextRequest
from api.tools.dialects.known import DIALECTS
from engine.errors import GrammarCheckBusy
from engine.grammars.checking import GrammarChecker
from engine.request import Grammar, ReasoningMarks
from tests.fakes.asking import chat
from tests.fakes.text import TEMPLATE, byte_level, served
from tests.fakes.tools import TOOLS, WEATHER, special, tool
from tests.unit.test_calls_beside_forms import fits

FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": WEATHER}}
OBJECT = {"type": "json_object"}
HERMES = byte_level(TEMPLATE + "<tool_call>")
IMPOSSIBLE = {"properties": {"a": {"type": "string", "pattern": "("}}}
ODD = '<tool_call>\n{"name": "odd", "arguments": {"a": 5}}\n</tool_call>'
CLOCK = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
MINIMAX = '<minimax:tool_call>\n<invoke name="%s">\n%s</invoke>\n</minimax:tool_call>'
PATTERNED = {"patternProperties": {"^x": {"type": "integer"}}}
PARIS = '{"city": "Paris"}'
HEADERS = ("<|channel|>", "<|message|>", "analysis", "final", "commentary")
OSS = special(*HEADERS, end="<|channel|>commentary")
GRAMMARS = GrammarChecker()


@pytest.fixture(autouse=True, scope="module")
def checked() -> Iterator[None]:
    """No process is left that checks grammars."""
    with GRAMMARS:
        yield


def door(codec: TextCodec = HERMES, parser: ReasoningParser = "none") -> ServedModel:
    return replace(served(codec), grammars=GRAMMARS, reasoning_parser=parser)


def grammar_of(asked: TextRequest) -> Grammar:
    [*grammars] = {call.request.sampling.grammar for call in asked.calls}
    assert len(grammars) == 1
    assert grammars[0] is not None
    return grammars[0]


@pytest.mark.parametrize("form", [FORM, OBJECT])
async def test_all_choices_are_held_to_a_call_or_the_form(form: dict[str, Any]) -> None:
    asked = await chat({"tools": TOOLS, "response_format": form, "n": 2}, door=door())
    grammar = grammar_of(asked)
    assert fits(grammar, PARIS)
    assert fits(grammar, "{}") == (form == OBJECT)
    assert fits(grammar, CLOCK)
    assert fits(grammar, f"{CLOCK}\n{CLOCK}")
    assert not fits(grammar, f"Well. {CLOCK}")
    assert asked.calling
    assert asked.calling.parser is not DIALECTS["hermes"].parser


async def test_one_call_is_the_most_where_calls_are_not_parallel() -> None:
    fields = {"tools": TOOLS, "response_format": FORM, "parallel_tool_calls": False}
    grammar = grammar_of(await chat(fields, door=door()))
    assert fits(grammar, CLOCK)
    assert not fits(grammar, f"{CLOCK}\n{CLOCK}")


async def test_without_calls_there_is_just_the_form() -> None:
    fields = {"tools": TOOLS, "response_format": FORM, "tool_choice": "none"}
    asked = await chat(fields, door=door())
    assert grammar_of(asked).kind == "json_schema"
    assert json.loads(grammar_of(asked).source) == WEATHER
    assert asked.calling is None


async def test_a_form_is_of_a_message_and_so_of_nothing_where_a_call_has_to_be_made() -> None:
    must = {"tools": TOOLS, "tool_choice": "required"}
    with_form = await chat({**must, "response_format": FORM}, door=door())
    assert grammar_of(with_form) == grammar_of(await chat(must, door=door()))
    assert with_form.calling
    assert with_form.calling.tools.forced


async def test_plain_text_and_forms_of_all_the_text_are_no_forms_beside_tools() -> None:
    asked = await chat({"tools": TOOLS, "response_format": {"type": "text"}}, door=door())
    assert asked.calls[0].request.sampling.grammar is None
    tag = {"type": "structural_tag", "format": {"type": "any_text"}}
    asked = await chat({"tools": TOOLS, "response_format": tag}, door=door())
    assert grammar_of(asked).kind == "structural_tag"
    assert json.loads(grammar_of(asked).source) == tag
    assert asked.calling
    assert asked.calling.parser is DIALECTS["hermes"].parser


async def test_a_schema_that_cannot_be_kept_to_is_a_reason_to_refuse_only_where_strict() -> (
    None
):
    odd = tool("odd", IMPOSSIBLE)
    fields = {"tools": [*TOOLS, odd], "response_format": FORM}
    grammar = grammar_of(await chat(fields, door=door()))
    assert fits(grammar, ODD)
    assert fits(grammar, CLOCK)
    assert not fits(grammar, CLOCK.replace("{}", '{"a": 5}'))
    odd["function"]["strict"] = True
    with pytest.raises(BadRequest) as refused:
        await chat(fields, door=door())
    assert refused.value.param == "tools[2].function.parameters"


async def test_nor_is_one_that_only_calls_outside_json_have_no_grammar_of() -> None:
    """Whether it cannot be built, or is refused only as this model writes it."""
    two = {"properties": {"a": {"type": "integer"}}, "required": ["a"], "minProperties": 2}
    form = door(byte_level(TEMPLATE + "<minimax:tool_call>"))
    for schema in (two, PATTERNED):
        odd = tool("odd", schema)
        fields = {"tools": [*TOOLS, odd], "response_format": FORM}
        grammar = grammar_of(await chat(fields, door=form))
        assert fits(grammar, MINIMAX % ("odd", '<parameter name="b">5</parameter>\n'))
        assert fits(grammar, MINIMAX % ("clock", ""))
        assert not fits(grammar, MINIMAX % ("clock", '<parameter name="b">5</parameter>\n'))
        odd["function"]["strict"] = True
        for asked in (fields, {"tools": fields["tools"]}):
            with pytest.raises(BadRequest) as refused:
                await chat(asked, door=form)
            assert refused.value.param == "tools[2].function.parameters"


async def test_a_form_that_cannot_be_kept_to_is_refused_before_tools_are_looked_at() -> None:
    form = {"type": "json_schema", "json_schema": {"schema": IMPOSSIBLE}}
    with pytest.raises(BadRequest) as refused:
        await chat({"tools": TOOLS, "response_format": form}, door=door())
    assert refused.value.param == "response_format"


async def test_who_checks_may_be_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = GRAMMARS.checked

    async def busy(_checker: object, grammar: Grammar) -> None:
        if grammar.kind == "structural_tag":
            raise GrammarCheckBusy("busy")
        await checked(grammar)

    monkeypatch.setattr(GrammarChecker, "checked", busy)
    with pytest.raises(TooBusy):
        await chat({"tools": TOOLS, "response_format": FORM}, door=door())


async def test_gpt_oss_may_call_before_the_message_that_has_the_form() -> None:
    fields = {"tools": TOOLS, "response_format": FORM}
    asked = await chat(fields, door=door(OSS, "openai_gptoss"))
    channel, message, analysis, final, commentary = (OSS.encode(one)[0] for one in HEADERS)
    closes, thinks = (channel, final, message), (channel, analysis, message)
    sampling = asked.calls[0].request.sampling
    assert sampling.grammar_behind == ReasoningMarks((closes,), (thinks, (channel, commentary)))
    assert grammar_of(asked).kind == "json_schema"
    alone = await chat({"response_format": FORM}, door=door(OSS, "openai_gptoss"))
    assert alone.calls[0].request.sampling.grammar_behind == ReasoningMarks(
        (closes,), (thinks,)
    )
    with pytest.raises(BadRequest, match="--reasoning-parser") as refused:
        await chat(fields, door=door(OSS))
    assert refused.value.param == "response_format"
