"""Reasoning is told from content by its marks, however an answer is cut into pieces."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.reasoning.formats import (
    REASONING_FORMATS,
    ReasoningFormat,
    ReasoningParser,
    find_format,
)
from api.reasoning.reader import MarkedReasoningReader, Split
from api.reasoning.thinking import RenderedPrompt, Thinking, thinking_of
from api.tools.dialects.invoke import WORD
from api.tools.parsing.output import SPACE
from engine.request import Grammar
from tests.fakes.tools import cut

R1, QWEN, MISTRAL = (
    REASONING_FORMATS["deepseek_r1"],
    REASONING_FORMATS["qwen3"],
    REASONING_FORMATS["mistral"],
)
M3, V4 = REASONING_FORMATS["minimax_m3"], REASONING_FORMATS["deepseek_v4"]
KIMI, CALLS = REASONING_FORMATS["kimi_k2"], "<|tool_calls_section_begin|>"
READ: list[tuple[ReasoningFormat, bool, str, Split]] = [
    (QWEN, False, "<think>\nHm.\n\n</think>\n\nYes.\n", ("Hm.", "Yes.\n")),
    (QWEN, False, "\n <think>a  b</think>c", ("a  b", "c")),
    (QWEN, False, "<think>\n\n</think>\n\nYes.", ("", "Yes.")),
    (QWEN, False, "Yes.", ("", "Yes.")),
    (QWEN, False, "\n Yes. <think>a</think>", ("", "\n Yes. <think>a</think>")),
    (QWEN, False, "Hm.</think>Yes.", ("", "Hm.</think>Yes.")),
    (QWEN, False, "<thin", ("", "<thin")),
    (QWEN, False, " <thinker>", ("", " <thinker>")),
    (QWEN, False, "\n\n", ("", "\n\n")),
    (QWEN, False, "<think>Hm. </thi", ("Hm. </thi", "")),
    (QWEN, False, "<think>", ("", "")),
    (QWEN, False, "<think>a<think>b</think>c</think>d", ("a<think>b", "c</think>d")),
    (QWEN, False, "<think>a</thin></think>b", ("a</thin>", "b")),
    (QWEN, True, "Hm.</think>Yes.", ("Hm.", "Yes.")),
    (QWEN, True, "\n<think>\nHm.</think>Yes.", ("Hm.", "Yes.")),
    (QWEN, True, "</think>\n\nYes.", ("", "Yes.")),
    (QWEN, True, "Yes.", ("Yes.", "")),
    (QWEN, True, " <th", ("<th", "")),
    (MISTRAL, False, "[THINK]a [/b][/THINK]c", ("a [/b]", "c")),
    (KIMI, True, "<think>Hm.</think>Yes.", ("Hm.", "Yes.")),
    (KIMI, True, f"Hm. {CALLS}f</think>", ("Hm.", f"{CALLS}f</think>")),
    (KIMI, True, f"Hm.</think>{CALLS}f", ("Hm.", f"{CALLS}f")),
    (KIMI, True, f"<think>{CALLS}f", ("", f"{CALLS}f")),
    (KIMI, True, CALLS[:-1], (CALLS[:-1], "")),
    (
        KIMI,
        True,
        f"Hm. {KIMI.call_openings[1]}f{CALLS}",
        ("Hm.", f"{KIMI.call_openings[1]}f{CALLS}"),
    ),
    (QWEN, True, f"Hm. {CALLS}f</think>Yes.", (f"Hm. {CALLS}f", "Yes.")),
    (
        REASONING_FORMATS["seed_oss"],
        False,
        "<seed:think>a</think></seed:think>b",
        ("a</think>", "b"),
    ),
    (M3, False, "<mm:think>Hm.</mm:think>\nYes.", ("Hm.", "Yes.")),
    (M3, False, "\n</mm:think>\nYes.</mm:think>", ("", "Yes.</mm:think>")),
    (M3, False, "</mm:think", ("", "</mm:think")),
    (M3, False, "</mm:thinker>", ("", "</mm:thinker>")),
    (M3, True, "</mm:think>Yes.", ("", "Yes.")),
    *(
        (V4, True, f"Hm.\n<{WORD}{section}>f", ("Hm.", f"<{WORD}{section}>f"))
        for section in ("tool_calls", "function_calls", " calls")
    ),
]
"""A form, whether the answer begins in the middle of reasoning, the answer; what it is."""


def read(form: ReasoningFormat, begun: bool, pieces: Sequence[str]) -> Split:
    reader = MarkedReasoningReader(form, begun)
    said = [*map(reader.read, pieces), reader.finish()]
    return "".join(thought for thought, _ in said), "".join(content for _, content in said)


def expected(form: ReasoningFormat, begun: bool, text: str) -> Split:
    """The same of a whole text, in the plainest words."""
    start = text.lstrip(SPACE)
    if not begun and not start.startswith(form.opens):
        return "", text
    thought, closes, rest = start.removeprefix(form.opens).partition(form.closes)
    thought = thought.lstrip(SPACE)
    return (thought.rstrip(SPACE), rest.lstrip(SPACE)) if closes else (thought, "")


@pytest.mark.parametrize(("form", "begun", "text", "said"), READ)
def test_marks_tell_reasoning_from_content(
    form: ReasoningFormat, begun: bool, text: str, said: Split
) -> None:
    assert read(form, begun, [text]) == said
    assert read(form, begun, [*text]) == said
    for place in range(len(text)):
        assert read(form, begun, [text[:place], text[place:]]) == said


PARTS = ("<think>", "</think>", "<", "</", "think", ">", "<thi", "nk>", " ", "\n", "a", "é 東")


@given(
    text=st.lists(st.sampled_from(PARTS), max_size=12).map("".join),
    begun=st.booleans(),
    data=st.data(),
)
def test_no_cut_changes_what_is_read(text: str, begun: bool, data: st.DataObject) -> None:
    assert read(QWEN, begun, data.draw(cut(text))) == expected(QWEN, begun, text)


def test_reasoning_is_said_as_it_comes_and_what_may_be_a_mark_is_held() -> None:
    reader = MarkedReasoningReader(QWEN, False)
    texts = ("<thi", "nk>\n", "One", ". \n", "Two", "</", "b></thin", "k>\n", "\nYes", "\n")
    said = ["", "", "One", ".", " \nTwo", "", "</b>", "", "", ""]
    content = ["", "", "", "", "", "", "", "", "Yes", "\n"]
    assert list(map(reader.read, texts)) == list(zip(said, content, strict=True))
    assert (reader.found_reasoning, reader.over) == (True, True)


def test_who_does_not_want_reasoning_gets_the_rest() -> None:
    reader = MarkedReasoningReader(QWEN, False, include_reasoning=False)
    said = [reader.read(one) for one in ("<think>Hm.", " Hm.</think>", "Yes.")]
    assert said == [("", ""), ("", ""), ("", "Yes.")]
    cut_short = MarkedReasoningReader(QWEN, True, include_reasoning=False)
    assert [cut_short.read("Hm. </"), cut_short.finish()] == [("", "")] * 2


TELLS_NOTHING = "<|user|>hi<|assistant|>\n"
PROMPTS: list[tuple[ReasoningFormat, str, str, dict[str, object], bool | None]] = [
    (R1, TELLS_NOTHING, "", {}, True),
    (QWEN, TELLS_NOTHING, "", {}, False),
    (R1, TELLS_NOTHING, "", {"enable_thinking": False}, False),
    (R1, TELLS_NOTHING, "", {"thinking": False}, False),
    (QWEN, TELLS_NOTHING, "", {"enable_thinking": True, "thinking": None}, False),
    (QWEN, TELLS_NOTHING + "<think>\n", "", {}, True),
    (QWEN, TELLS_NOTHING + "<think>\n", "", {"enable_thinking": False}, True),
    (R1, TELLS_NOTHING + "<think>\n\n</think>\n\n", "", {}, None),
    (QWEN, TELLS_NOTHING + "</think>", "", {"enable_thinking": True}, None),
    (QWEN, "<think>hi</think>" + TELLS_NOTHING, "", {}, False),
    (QWEN, "say <think>" + TELLS_NOTHING, "", {}, False),
    (QWEN, TELLS_NOTHING + "<think>I", "<think>I", {}, True),
    (R1, TELLS_NOTHING + "It is", "It is", {}, None),
    (R1, TELLS_NOTHING + "<think>I</think>It", "<think>I</think>It", {}, None),
]
"""A form, a prompt, what of it is continued, the template's variables; whether the answer is
reasoning from its beginning, or None where it has none."""


@pytest.mark.parametrize(("form", "prompt", "continued", "variables", "begun"), PROMPTS)
def test_the_prompts_end_tells_whether_the_model_thinks(
    form: ReasoningFormat,
    prompt: str,
    continued: str,
    variables: dict[str, object],
    begun: bool | None,
) -> None:
    found = thinking_of(form, RenderedPrompt(prompt, continued, variables), tells=True)
    assert found == (None if begun is None else Thinking(form, begun))


@pytest.mark.parametrize(
    ("told", "template", "form"),
    [
        ("none", "<think></think>", None),
        ("qwen3", "", QWEN),
        ("deepseek_r1", None, R1),
        ("auto", "{{ '<think>' }}{{ '</think>' }}", QWEN),
        ("auto", {"default": "", "tool_use": "[THINK][/THINK]"}, MISTRAL),
        ("auto", "<seed:think></seed:think>", REASONING_FORMATS["seed_oss"]),
        ("auto", "{{ '<mm:think>' }}", M3),
        ("auto", "{% if think %}<think>{% endif %}", QWEN),
        ("auto", "<|assistant|>", None),
        ("auto", None, None),
    ],
)
def test_a_form_is_told_or_known_by_the_template(
    told: ReasoningParser, template: object, form: ReasoningFormat | None
) -> None:
    assert find_format(told, template) is form


def test_every_form_can_be_chosen() -> None:
    assert set(ReasoningParser.__args__) == {"none", "auto", *REASONING_FORMATS}  # type: ignore[attr-defined]


def tags(**more: object) -> Grammar:
    """Free text, and calls in it."""
    tag = {"type": "tag", "begin": "<f>", "content": {"type": "any_text"}, "end": "</f>"}
    said = {"type": "triggered_tags", "triggers": ["<f>"], "tags": [tag], **more}
    return tag_of(said)


def tag_of(said: object) -> Grammar:
    source = msgspec.json.encode({"type": "structural_tag", "format": said})
    return Grammar("structural_tag", source.decode())


THOUGHT = {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": "</think>"}
OLDER = {"structures": [{"begin": "<f>", "schema": True, "end": "</f>"}], "triggers": ["<f"]}


@pytest.mark.parametrize(
    ("grammar", "room"),
    [
        (Grammar("json_object"), False),
        (Grammar("json_schema", '{"const": "</think>"}'), False),
        (Grammar("regex", "[a-z]+"), False),
        (Grammar("regex", "[a-z]+</think>[0-9]"), True),
        (Grammar("regex", r"[a-z]+<\/think>[0-9]"), True),
        (Grammar("ebnf", 'root ::= "a</think>b"'), True),
        (tags(), True),
        (tags(at_least_one=True), False),
        (tags(triggers=["<"]), False),
        (tags(excludes=["</think>"]), False),
        (tag_of({"type": "any_text"}), True),
        (tag_of({"type": "any_text", "excludes": ["<think>", "</think>"]}), False),
        (tag_of({"type": "sequence", "elements": [THOUGHT, {"type": "any_text"}]}), True),
        (tag_of({"type": "json_schema", "json_schema": True}), False),
        (Grammar("structural_tag", msgspec.json.encode(OLDER).decode()), True),
    ],
)
def test_a_grammar_in_which_the_closing_mark_cannot_come_leaves_no_room(
    grammar: Grammar, room: bool
) -> None:
    assert Thinking(QWEN, starts_open=True).can_reason_within(grammar) is room


def test_a_mark_that_an_expression_has_to_escape_is_seen() -> None:
    held = Grammar("regex", r"[a-z]+\[/THINK\][0-9]")
    assert Thinking(MISTRAL, starts_open=True).can_reason_within(held)
