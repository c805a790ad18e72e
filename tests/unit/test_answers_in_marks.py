"""Marks around the content are no content, and marks may be spelt in more than one way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.reasoning.formats import REASONING_FORMATS, ReasoningFormat, find_format
from api.reasoning.reader import Split
from api.reasoning.thinking import RenderedPrompt, Thinking, thinking_of
from api.tools.dialects.known import DIALECTS, find_dialect
from tests.fakes.tools import claims, cut

ERNIE, HUNYUAN, GRANITE = (
    REASONING_FORMATS["ernie45"],
    REASONING_FORMATS["hunyuan_a13b"],
    REASONING_FORMATS["granite"],
)
HERE, RESPONSE = "Here is my thought process:", "Here is my response:"
CALL = '<tool_call>\n{"name": "clock"}\n</tool_call>'
READ: list[tuple[ReasoningFormat, bool, str, Split]] = [
    (ERNIE, True, "Hm.\n</think>\n\n<response>\nYes.\n</response>\n", ("Hm.", "Yes.")),
    (ERNIE, True, "Hm.\n</think>\nYes.", ("Hm.", "Yes.")),
    (ERNIE, True, f"Hm.\n</think>\n\n\n{CALL}\n", ("Hm.", f"{CALL}\n")),
    (ERNIE, True, f"</think><response>a</response>\n{CALL}", ("", f"a{CALL}")),
    (ERNIE, True, "Hm.</think><response>\n a\n\nb \n", ("Hm.", "a\n\nb \n")),
    (ERNIE, True, "Hm.</think><response>a </resp", ("Hm.", "a </resp")),
    (ERNIE, True, "Hm.</think>\n<resp", ("Hm.", "<resp")),
    (ERNIE, True, "Hm.</think>a<response>b</response>", ("Hm.", "a<response>b</response>")),
    (ERNIE, True, "Hm.</think><response></response>", ("Hm.", "")),
    (
        ERNIE,
        True,
        "</think><response>a</response>b</response>",
        ("", "ab</response>"),
    ),
    (ERNIE, True, "Hm. <response>", ("Hm. <response>", "")),
    (HUNYUAN, False, "<think>\nHm.\n</think>\n<answer>\nYes.\n</answer>", ("Hm.", "Yes.")),
    (HUNYUAN, False, "<think>\n\n</think>\n\n<answer>Yes.</answer>", ("", "Yes.")),
    (HUNYUAN, False, "\n<answer>\nYes.\n</answer>", ("", "Yes.")),
    (HUNYUAN, False, "\n Yes. <answer>", ("", "\n Yes. <answer>")),
    (HUNYUAN, False, " \n", ("", " \n")),
    (GRANITE, False, f"{HERE} Hm. {RESPONSE} Yes.", ("Hm.", "Yes.")),
    (GRANITE, False, f"\n{HERE}\n\nHm.\n\nHere's my response:\nYes.", ("Hm.", "Yes.")),
    (
        GRANITE,
        False,
        f"Here's my thought process: Hm. Here is {RESPONSE}Yes.",
        ("Hm. Here is", "Yes."),
    ),
    (GRANITE, False, f"{HERE} Hm. Here's my resp", ("Hm. Here's my resp", "")),
    (GRANITE, False, f"Yes. {HERE}", ("", f"Yes. {HERE}")),
    (GRANITE, False, "Here is my thought", ("", "Here is my thought")),
    (GRANITE, False, "Here's it", ("", "Here's it")),
]
"""A form, whether the answer begins in the middle of reasoning, the answer; what it is."""


def read(form: ReasoningFormat, begun: bool, *pieces: str) -> Split:
    reader = Thinking(form, begun).reader()
    said = [*map(reader.read, pieces), reader.finish()]
    thought, content = ("".join(parts) for parts in zip(*said, strict=True))
    assert reader.found_reasoning == (begun or bool(thought) or pieces_open(form, pieces))
    return thought, content


def pieces_open(form: ReasoningFormat, pieces: tuple[str, ...]) -> bool:
    return "".join(pieces).lstrip().startswith(form.openings)


@pytest.mark.parametrize(("form", "begun", "text", "said"), READ)
def test_marks_tell_reasoning_and_content_from_what_is_around_them(
    form: ReasoningFormat, begun: bool, text: str, said: Split
) -> None:
    assert read(form, begun, text) == said
    assert read(form, begun, *text) == said
    for place in range(len(text)):
        assert read(form, begun, text[:place], text[place:]) == said


PARTS = [
    *("<think>", "</think>", "<answer>", "</answer>", "<response>", "</response>", "<", "</"),
    *(HERE, RESPONSE, "Here's my response:", "Here", " is", "'s", "a", " ", "\n", "é"),
]


@pytest.mark.parametrize("form", [ERNIE, HUNYUAN, GRANITE])
@given(
    text=st.lists(st.sampled_from(PARTS), max_size=12).map("".join),
    begun=st.booleans(),
    data=st.data(),
)
def test_no_cut_changes_what_is_read(
    form: ReasoningFormat, text: str, begun: bool, data: st.DataObject
) -> None:
    whole = read(form, begun, text)
    assert read(form, begun, *text) == whole
    assert read(form, begun, *data.draw(cut(text))) == whole


def test_content_is_said_as_it_comes_and_what_may_be_a_mark_is_held() -> None:
    reader = Thinking(HUNYUAN, False).reader()
    before = ("<think>Hm.</think>\n<ans", "wer>\n")
    texts = (*before, "One", ". \n", "Two", "</", "b></answ", "er>\n")
    content = ["", "", "One", ".", " \nTwo", "", "</b>", ""]
    assert [reader.read(text)[1] for text in texts] == content
    assert not reader.plain
    assert reader.over
    assert reader.read("So.") == ("", "So.")
    assert reader.plain


def test_marks_are_read_where_the_prompt_has_ended_the_reasoning() -> None:
    ended = RenderedPrompt("hi<think>\n\n</think>\n", "", {})
    assert thinking_of(HUNYUAN, ended, tells=True) == Thinking(HUNYUAN, False)
    assert thinking_of(REASONING_FORMATS["qwen3"], ended, tells=True) is None
    for mark in (HERE, "Here's my thought process:"):
        begun = thinking_of(GRANITE, RenderedPrompt(f"hi {mark}\n", "", {}), tells=True)
        assert begun == Thinking(GRANITE, True)
        assert thinking_of(GRANITE, RenderedPrompt("", f"{mark} a", {}), tells=True) == begun
    for mark in (RESPONSE, "Here's my response:"):
        assert (
            thinking_of(GRANITE, RenderedPrompt(f"{HERE} a {mark}", "", {}), tells=True) is None
        )
        assert (
            thinking_of(GRANITE, RenderedPrompt("", f"{HERE} a {mark} b", {}), tells=True)
            is None
        )


@pytest.mark.parametrize("name", ["ernie45", "olmo3", "step3"])
def test_models_that_begin_with_reasoning_are_named(name: str) -> None:
    form = REASONING_FORMATS[name]
    assert thinking_of(form, RenderedPrompt("hi", "", {}), tells=True) == Thinking(form, True)


def test_all_marks_are_text_whether_they_are_special_tokens_or_not() -> None:
    assert Thinking(ERNIE, True).markers == (
        "<think>",
        "</think>",
        "<response>",
        "</response>",
    )
    assert "Here's my response:" in Thinking(GRANITE, False).markers


def test_a_granite_and_an_ernie_are_known_by_their_templates() -> None:
    shown = f"Write your thoughts after '{HERE}' and write your response after '{RESPONSE}'"
    assert find_format("auto", shown) is GRANITE
    template = "<tool_call> ... '<response>\n' + message.content + '\n</response>\n'"
    assert find_dialect("auto", template) is DIALECTS["ernie45"]
    assert claims(template) == {"ernie45"}
