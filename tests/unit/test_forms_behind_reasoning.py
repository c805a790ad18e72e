"""What an answer has to look like begins behind its reasoning, where a chat has a parser."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from api.errors import BadRequest
from api.reasoning.formats import REASONING_FORMATS, ReasoningParser
from api.reasoning.thinking import Thinking
from api.text.tokenizing import TextCodec
from engine.grammars.checking import GrammarChecker
from engine.request import Grammar, ReasoningMarks
from tests.fakes.asking import chat, complete
from tests.fakes.text import TEMPLATE, byte_level, metaspace, served
from tests.fakes.tools import TOOLS, special
from tests.unit.test_reasoning import tag_of, tags

QWEN, GLM = REASONING_FORMATS["qwen3"], REASONING_FORMATS["glm45"]
TOKENS = {"<think>": 5, "</think>": 6, "\n": 7}
JSON = Grammar("json_object")
BEGUN, EITHER = ReasoningMarks(((6,),)), ReasoningMarks(((6,),), ((5,), (7, 5)))
FREE = {"type": "any_text", "excludes": ["<think>", "</think>"]}
THOUGHT = {
    "type": "tag",
    "begin": "<think>",
    "content": {"type": "any_text"},
    "end": "</think>",
}
CALLED: dict[str, object] = {
    "type": "triggered_tags",
    "triggers": ["<think>"],
    "tags": [THOUGHT],
}
BARRED = {"excludes": ["</think>"]}
IN_A_ROW = tag_of({"type": "sequence", "elements": [THOUGHT, FREE]})


@pytest.mark.parametrize(
    ("grammar", "marks"),
    [
        (JSON, BEGUN),
        (Grammar("json_schema", '{"const": "</think>"}'), BEGUN),
        (Grammar("choice", '["yes", "no"]'), BEGUN),
        (Grammar("regex", "[a-z]+"), BEGUN),
        (Grammar("regex", r"[a-z]+<\/think>[0-9]"), None),
        (Grammar("ebnf", 'root ::= "a</think>b"'), None),
        (tag_of(FREE), BEGUN),
        (tags(), BEGUN),
        (tags(at_least_one=True, excludes=["</think>"]), BEGUN),
        (tag_of(CALLED), None),
        (IN_A_ROW, None),
        (tag_of({"type": "sequence", "elements": [FREE]}), BEGUN),
        (tag_of({"type": "optional", "content": {**CALLED, "tags": [], **BARRED}}), BEGUN),
        (structs.replace(IN_A_ROW, source=IN_A_ROW.source.replace("<", r"\u003c")), None),
    ],
)
def test_a_grammar_that_speaks_of_the_mark_is_about_the_reasoning_too(
    grammar: Grammar, marks: ReasoningMarks | None
) -> None:
    assert Thinking(QWEN, starts_open=True).grammar_marks(grammar, TOKENS.get) == marks


@pytest.mark.parametrize(
    ("begun", "missing", "marks"),
    [
        (True, "<think>", BEGUN),
        (True, "</think>", None),
        (False, "", EITHER),
        (False, "\n", ReasoningMarks(((6,),), ((5,),))),
        (False, "<think>", None),
        (False, "</think>", None),
    ],
)
def test_marks_have_to_be_tokens(
    begun: bool, missing: str, marks: ReasoningMarks | None
) -> None:
    known = {text: token for text, token in TOKENS.items() if text != missing}
    assert Thinking(GLM, begun).grammar_marks(JSON, known.get) == marks


def test_only_where_models_write_one_is_a_new_line_part_of_the_mark() -> None:
    """With another model it would be the beginning of anything."""
    assert Thinking(QWEN, starts_open=False).grammar_marks(JSON, TOKENS.get) == ReasoningMarks(
        ((6,),), ((5,),)
    )


def test_a_token_is_one_of_nothing_but_its_text() -> None:
    codec = special("<think>")
    assert codec.single_token("<think>") == codec.encode("<think>")[0] >= 300
    assert codec.single_token("\n") == codec.encode("\n")[0]
    assert codec.single_token("</think>") is None
    assert codec.single_token("") is None
    assert (
        metaspace().single_token("<think>") is None
    )  # one token each, of a letter it does not know
    assert metaspace().single_token("ß") is None


MARKED = special("<think>", "</think>", end="<|assistant|>")
OPEN = special("<think>", "</think>", end="<think>\n")
CLOSED = special("<think>", "</think>", end="<think>\n\n</think>\n\n")
OPENS, CLOSES = (MARKED.encode(one)[0] for one in ("<think>", "</think>"))
NEW_LINE = MARKED.encode("\n")[0]
BEHIND = ReasoningMarks(((CLOSES,),))
OR_AT_ONCE = ReasoningMarks(((CLOSES,),), ((OPENS,),))
OR_SPACED = ReasoningMarks(((CLOSES,),), ((OPENS,), (NEW_LINE, OPENS)))
HEADERS = ("<|channel|>", "<|message|>", "analysis", "final")
OSS = special(*HEADERS)
CHANNEL, MESSAGE, ANALYSIS, FINAL = (OSS.encode(one)[0] for one in HEADERS)
BEHIND_FINAL = ReasoningMarks(((CHANNEL, FINAL, MESSAGE),), ((CHANNEL, ANALYSIS, MESSAGE),))
MUST_CALL = {"tools": TOOLS, "tool_choice": "required"}
HELD: dict[str, Any] = {"response_format": {"type": "json_object"}}
OFF = {"chat_template_kwargs": {"enable_thinking": False}}
GRAMMARS = GrammarChecker()


@pytest.fixture(autouse=True, scope="module")
def checked() -> Iterator[None]:
    """No process is left that checks grammars."""
    with GRAMMARS:
        yield


def door(codec: TextCodec, parser: ReasoningParser = "qwen3", size: int | None = None) -> Any:  # noqa: ANN401
    one = served(codec)
    return replace(one, reasoning_parser=parser, grammars=GRAMMARS, vocab_size=size)


@pytest.mark.parametrize(
    ("codec", "parser", "fields", "marks"),
    [
        (OPEN, "qwen3", HELD, BEHIND),
        (OPEN, "auto", {"guided_regex": "[a-z]+"}, BEHIND),
        (OPEN, "none", HELD, None),
        (OPEN, "qwen3", {}, None),
        (OPEN, "qwen3", {**HELD, "include_reasoning": False}, BEHIND),
        (OPEN, "qwen3", {"guided_regex": "[a-z]+</think>[0-9]"}, None),
        (CLOSED, "qwen3", HELD, None),
        (MARKED, "qwen3", HELD, OR_AT_ONCE),
        (MARKED, "glm45", HELD, OR_SPACED),
        (MARKED, "deepseek_r1", HELD, BEHIND),
        (MARKED, "deepseek_r1", {**HELD, **OFF}, OR_AT_ONCE),
        (MARKED, "deepseek_r1", {**HELD, "reasoning_effort": "none"}, OR_AT_ONCE),
        (MARKED, "deepseek_r1", {**HELD, "reasoning_effort": "low"}, BEHIND),
        (OPEN, "mistral", HELD, None),
        (OSS, "openai_gptoss", HELD, BEHIND_FINAL),
        (OSS, "openai_gptoss", MUST_CALL, None),
        (OPEN, "qwen3", MUST_CALL, BEHIND),
        (
            *(OPEN, "qwen3"),
            *(
                {
                    "tools": TOOLS,
                    "tool_choice": {"type": "function", "function": {"name": "clock"}},
                },
            ),
            BEHIND,
        ),
        (OPEN, "qwen3", {"tools": TOOLS, "tool_choice": "none"}, None),
        (byte_level(TEMPLATE + "<think>"), "qwen3", HELD, None),
    ],
)
async def test_a_chat_says_behind_which_tokens_its_grammar_begins(
    codec: TextCodec,
    parser: ReasoningParser,
    fields: dict[str, Any],
    marks: ReasoningMarks | None,
) -> None:
    asked = await chat({**fields, "n": 2}, door=door(codec, parser))
    found = [call.request.sampling.grammar_behind for call in asked.calls]
    assert found == [marks] * 2
    assert [call.request.sampling.sample_index for call in asked.calls] == [0, 1]
    if marks is not None:
        assert asked.thinking is not None
    if fields == MUST_CALL:
        assert (asked.thinking is None) == (marks is None)


async def test_a_mark_that_the_model_has_no_logit_for_cannot_be_seen() -> None:
    asked = await chat(HELD, door=door(OPEN, size=CLOSES))
    assert asked.calls[0].request.sampling.grammar_behind is None
    assert asked.thinking is None


async def test_completions_are_held_from_their_first_token() -> None:
    asked = await complete({**HELD, "prompt": "<think>"}, door=door(OPEN))
    assert asked.calls[0].request.sampling.grammar_behind is None


async def test_a_grammar_that_cannot_be_is_refused_before_marks_are_looked_for() -> None:
    broken = {"type": "structural_tag", "format": 1}
    with pytest.raises(BadRequest):
        await chat({"structural_tag": broken}, door=door(OPEN))
