"""What a chat whose functions are strict is held to, and who is told that it cannot be."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from api.errors import BadRequest, TooBusy
from api.messages.bodies import read_messages
from api.messages.to_chat import chat_of as chat_of_messages
from api.reasoning.formats import REASONING_FORMATS, ReasoningParser
from api.request_parser import RequestParser
from api.responses.bodies import read_responses
from api.responses.to_chat import chat_of as chat_of_responses
from api.served import ServedModel, read_whole_request
from api.text.tokenizing import TextCodec
from api.text_requests import TextRequest
from engine.errors import GrammarCheckBusy
from engine.grammars.checking import GrammarChecker
from engine.grammars.sources import to_llguidance
from engine.request import Grammar, ReasoningMarks
from tests.fakes.asking import chat
from tests.fakes.text import TEMPLATE, byte_level, served
from tests.fakes.tools import WEATHER, special, tool
from tests.unit.test_calls_beside_forms import fits
from tests.unit.test_forms_beside_tools import HEADERS, IMPOSSIBLE, OSS

HERMES = byte_level(TEMPLATE + "<tool_call>")
CALL = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'
PARIS, FIVE = CALL.format("weather", '{"city": "Paris"}'), CALL.format("weather", '{"city": 5}')
ODD = CALL.format("odd", '{"a": 5}')
ALIKE = CALL.format("clock", '{"any": [5]}')
GRAMMARS = GrammarChecker()


@pytest.fixture(autouse=True, scope="module")
def checked() -> Iterator[None]:
    """No process is left that checks grammars."""
    with GRAMMARS:
        yield


def door(codec: TextCodec = HERMES, parser: ReasoningParser = "none") -> ServedModel:
    return replace(served(codec), grammars=GRAMMARS, reasoning_parser=parser)


def strict(name: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    one = tool(name, schema)
    one["function"]["strict"] = True
    return one


TOOLS = [strict("weather", WEATHER), tool("clock")]


def held(asked: TextRequest) -> Grammar | None:
    [*grammars] = {call.request.sampling.grammar for call in asked.calls}
    assert len(grammars) == 1
    return grammars[0]


async def grammar_of(fields: dict[str, Any], by: ServedModel | None = None) -> Grammar:
    grammar = held(await chat(fields, door=by or door()))
    assert grammar is not None
    return grammar


@pytest.mark.parametrize("choice", [{}, {"tool_choice": "auto"}])
async def test_all_choices_are_text_with_calls_that_fit(choice: dict[str, Any]) -> None:
    grammar = await grammar_of({"tools": TOOLS, "n": 2, **choice})
    for text in (
        "",
        "Hi.",
        PARIS,
        ALIKE,
        f"Well. {PARIS}\n{ALIKE} So.",
        "<tool_cal",
        '{"a": 5}',
    ):
        assert fits(grammar, text)
    for text in (FIVE, f"Well. {FIVE}", f"{PARIS} {FIVE}", ODD, "<tool_call>"):
        assert not fits(grammar, text)


async def test_one_call_is_the_most_where_calls_are_not_parallel() -> None:
    grammar = await grammar_of({"tools": TOOLS, "parallel_tool_calls": False})
    assert fits(grammar, f"Well. {PARIS}")
    assert not fits(grammar, f"{PARIS}\n{ALIKE}")


@pytest.mark.parametrize("said", [None, False])
async def test_without_a_strict_function_nothing_is_held(said: bool | None) -> None:
    one = strict("weather", WEATHER)
    one["function"]["strict"] = said
    asked = await chat({"tools": [one]}, door=replace(door(), grammars=None))  # type: ignore[arg-type]
    assert held(asked) is None
    assert asked.calls[0].request.sampling.grammar_behind is None
    assert held(await chat({"tools": TOOLS, "tool_choice": "none"}, door=door())) is None


async def test_what_says_all_of_the_text_is_said_alone() -> None:
    asked = await chat({"tools": TOOLS, "structured_outputs": {"regex": "a+"}}, door=door())
    assert held(asked) == Grammar("regex", "a+")


async def test_a_strict_schema_that_nothing_can_be_held_to_is_refused() -> None:
    odd = tool("odd", IMPOSSIBLE)
    assert fits(await grammar_of({"tools": [*TOOLS, odd]}), ODD)
    other = tool("other", IMPOSSIBLE)
    odd["function"]["strict"] = True
    with pytest.raises(BadRequest) as refused:
        await chat({"tools": [other, *TOOLS, odd]}, door=door())
    assert refused.value.param == "tools[3].function.parameters"


async def test_all_of_them_may_be_too_much_together(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = GrammarChecker.checked

    async def busy(checker: GrammarChecker, grammar: Grammar) -> None:
        if grammar.kind == "structural_tag":
            raise GrammarCheckBusy("busy")
        await checked(checker, grammar)

    long = {f"key{n}": {"enum": ["x" * 1000]} for n in range(300)}
    with pytest.raises(BadRequest, match="characters") as refused:
        await chat({"tools": [strict("f", {"properties": long})]}, door=door())
    assert refused.value.param == "tools[0].function.parameters"
    half = {"properties": dict(list(long.items())[:200])}
    with pytest.raises(BadRequest, match="characters") as refused:
        await chat({"tools": [strict("f", half), strict("g", half)]}, door=door())
    assert refused.value.param == "tools"
    monkeypatch.setattr(GrammarChecker, "checked", busy)
    with pytest.raises(TooBusy):
        await chat({"tools": TOOLS}, door=door())


async def test_arguments_as_text_that_are_too_many_are_refused() -> None:
    large = {"properties": {f"key{n}": {"enum": ["x" * 1000]} for n in range(300)}}
    coder = byte_level(TEMPLATE + "<tool_call><function=<parameter=")
    with pytest.raises(BadRequest, match="over 262144") as refused:
        await chat({"tools": [strict("f", large)]}, door=door(coder))
    assert refused.value.param == "tools[0].function.parameters"


async def test_text_begins_behind_reasoning() -> None:
    codec = special("<think>", "</think>")
    asked = await chat({"tools": TOOLS}, door=door(codec, "qwen3"))
    opens, closes = (codec.encode(one)[0] for one in ("<think>", "</think>"))
    assert asked.calls[0].request.sampling.grammar_behind == ReasoningMarks(
        ((closes,),), ((opens,),)
    )
    assert asked.thinking
    grammar = held(asked)
    assert grammar
    assert "think" not in grammar.source
    assert fits(grammar, f"\n\nWell. {PARIS}")


@pytest.mark.parametrize(
    ("parser", "mark", "words"),
    [
        ("kimi_k2", "<|tool_call_argument_begin|>", ("<think>", "</think>")),
        ("gemma4", "<|tool_call>call:", ("<|channel>", "<channel|>")),
    ],
)
async def test_reasoning_that_tokens_do_not_tell_or_calls_end_is_part_of_the_text(
    parser: ReasoningParser, mark: str, words: tuple[str, str]
) -> None:
    codec = special(*words, end="", template=f"{TEMPLATE}{{# {mark} #}}")
    asked = await chat({"tools": TOOLS}, door=door(codec, parser))
    assert asked.calls[0].request.sampling.grammar_behind is None
    assert asked.thinking
    assert asked.thinking.reasoning_format == REASONING_FORMATS[parser]
    grammar = held(asked)
    assert grammar
    assert fits(grammar, f"{words[0]}Hm.{words[1]}Well.")
    written = to_llguidance(grammar, {words[0]: 7, words[1]: 8}.get)
    assert "<[7]>" in written
    assert "<[8]>" in written


async def test_calls_of_some_models_are_not_held() -> None:
    xlam = byte_level(TEMPLATE + '[{"name": "tool_call_name"')
    asked = await chat({"tools": TOOLS}, door=door(xlam))
    assert asked.calling
    assert held(asked) is None
    odd = [strict("odd", IMPOSSIBLE)]
    assert held(await chat({"tools": odd}, door=door(xlam))) is None


@pytest.mark.parametrize(("word", "holds"), [("<arg_key>", False), ("<other>", True)])
async def test_calls_whose_tags_are_special_tokens_are_not_held(word: str, holds: bool) -> None:
    codec = special(word, end="<tool_call>{# <arg_key> #}")
    assert (held(await chat({"tools": TOOLS}, door=door(codec))) is not None) == holds


async def test_calls_of_gpt_oss_are_held_in_all_its_messages() -> None:
    asked = await chat({"tools": TOOLS}, door=door(OSS, "openai_gptoss"))
    assert asked.calls[0].request.sampling.grammar_behind is None
    assert asked.thinking
    grammar = held(asked)
    assert grammar
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    call = '<|channel|>commentary to=functions.weather<|message|>{"city": '
    for before in ("", thought):
        assert fits(grammar, f'{before}{call}"Paris"}}')
        assert fits(grammar, f"{before}<|channel|>final<|message|>Well.")
        assert not fits(grammar, f"{before}{call}5}}")
    assert not fits(grammar, "Well.")
    begun = special(*HEADERS, end=f"<|channel|>commentary{HEADERS[0]}analysis{HEADERS[1]}")
    grammar = held(await chat({"tools": TOOLS}, door=door(begun, "openai_gptoss")))
    assert grammar
    assert fits(grammar, "Well.")
    assert held(await chat({"tools": TOOLS}, door=door(OSS))) is None


async def test_calls_are_those_of_what_is_allowed_and_custom_tools_take_a_text() -> None:
    custom = {"type": "custom", "custom": {"name": "note"}}
    some = [{"type": "function", "function": {"name": "weather"}}, custom]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": some}}
    fields: dict[str, Any] = {"tools": [*TOOLS, custom]}
    note, other = CALL.format("note", '{"input": "x"}'), CALL.format("note", '{"output": "x"}')
    for more, clock in (({}, True), ({"tool_choice": choice}, False)):
        grammar = await grammar_of({**fields, **more})
        assert fits(grammar, PARIS)
        assert fits(grammar, note)
        assert not fits(grammar, other)
        assert fits(grammar, ALIKE) is clock
    choice["allowed_tools"] = {"mode": "auto", "tools": [custom]}
    assert held(await chat({**fields, "tool_choice": choice}, door=door())) is None


def function(**more: object) -> dict[str, Any]:
    return {"type": "function", "name": "weather", "parameters": WEATHER, **more}


@pytest.mark.parametrize(("more", "holds"), [({"strict": True}, True), ({}, False)])
async def test_responses_hold_what_they_say_is_strict(
    more: dict[str, Any], holds: bool
) -> None:
    body = msgspec.json.encode({"input": "hi", "tools": [function(**more)]})
    asked = await RequestParser(door(), read_whole_request).parse_chat(
        chat_of_responses(read_responses(body)), "id", 1
    )
    assert (held(asked) is not None) == holds


@pytest.mark.parametrize(("more", "holds"), [({"strict": True}, True), ({}, False)])
async def test_messages_hold_what_they_say_is_strict(more: dict[str, Any], holds: bool) -> None:
    one = {"name": "weather", "input_schema": WEATHER, **more}
    said = {"messages": [{"role": "user", "content": "hi"}], "tools": [one], "max_tokens": 9}
    body = read_messages(msgspec.json.encode(said))
    asked = await RequestParser(door(), read_whole_request).parse_chat(
        chat_of_messages(body), "id", 1
    )
    assert (held(asked) is not None) == holds


@pytest.mark.parametrize(
    "form", [{"tool_choice": "required"}, {"response_format": {"type": "json_object"}}, {}]
)
async def test_a_schema_is_refused_by_a_place_of_its_own(form: dict[str, Any]) -> None:
    ways = {"oneOf": [{"type": "string"}, {"type": "string"}]}
    schema = {"type": "object", "properties": {"a": ways}, "required": ["a"]}
    with pytest.raises(BadRequest) as refused:
        await chat({"tools": [strict("f", schema)], **form}, door=door())
    assert str(refused.value).startswith("json_schema: #/properties/a/oneOf: its ways overlap")
    assert refused.value.param == "tools[0].function.parameters"
