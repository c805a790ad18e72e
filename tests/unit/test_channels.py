"""Messages of gpt-oss are told apart by their channels, however an answer is cut."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from api.reasoning.channels import ChannelReader
from api.reasoning.formats import REASONING_FORMATS, find_format
from api.reasoning.reader import Split
from api.reasoning.thinking import RenderedPrompt, Thinking, thinking_of
from api.tools.dialects.harmony import LONGEST_HEADER, MARKS
from engine.request import Grammar, ReasoningMarks
from tests.fakes.tools import cut

OSS = REASONING_FORMATS["openai_gptoss"]
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
NEXT = "<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}'
OTHER = '<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"a": 1}'
CALLED = '<|channel|>commentary to=functions.f<|message|>{"a": 1}'
READ: list[tuple[str, Split]] = [
    (f"{ANALYSIS}Hm.\n{NEXT}{FINAL}It is 4.\n", ("Hm.\n", "It is 4.\n")),
    (f"{ANALYSIS}Hm.{NEXT}{FINAL}It is 4.<|return|>", ("Hm.", "It is 4.")),
    (f"{FINAL}It is 4.", ("", "It is 4.")),
    (f"{ANALYSIS}A.{NEXT}{ANALYSIS}B.{NEXT}{FINAL}C.", ("A.B.", "C.")),
    (f"{ANALYSIS}A.{FINAL}B.", ("A.", "B.")),
    (f"{ANALYSIS}A.{NEXT}{CALL}<|call|>", ("A.", CALLED)),
    (f"{ANALYSIS}A.<|end|>{OTHER}", ("A.", CALLED)),
    (f"{OTHER.removeprefix('<|start|>assistant')}", ("", CALLED)),
    (f"{CALL}<|call|><|start|>assistant{CALL}", ("", CALLED * 2)),
    (
        f"<|channel|>commentary<|message|>I look.{NEXT}{ANALYSIS}A.{NEXT}{CALL}",
        ("A.", "I look." + CALLED),
    ),
    (f"{ANALYSIS}A <|b|> <|en", ("A <|b|> <|en", "")),
    (f"{FINAL}1 <|", ("", "1 <|")),
    (f"{ANALYSIS}Hm.{NEXT}<|channel|>fin", ("Hm.", "")),
    ("<|channel|>anal", ("", "")),
    ("<|chan", ("", "<|chan")),
    ('{"a": 1}<|end|>', ("", '{"a": 1}<|end|>')),
    ("to be", ("", "to be")),
    ("to=5", ("", "to=5")),
    ("", ("", "")),
    ("<|start|>" + "a" * 2 * LONGEST_HEADER, ("", "<|start|>" + "a" * 2 * LONGEST_HEADER)),
    (f"{ANALYSIS}A.<|end|>B {FINAL}", ("A.", f"B {FINAL}")),
]
"""An answer, and what of it is reasoning and what is content."""


def read(pieces: Sequence[str], *, begun: bool = False, tells: bool = True) -> Split:
    reader = ChannelReader(begun, tells)
    said = [*map(reader.read, pieces), reader.finish()]
    return "".join(thought for thought, _ in said), "".join(content for _, content in said)


@pytest.mark.parametrize(("text", "said"), READ)
def test_channels_tell_reasoning_from_content(text: str, said: Split) -> None:
    assert read([text]) == said
    assert read([*text]) == said


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    ("before", "content"),
    [(f"{ANALYSIS}It is 4. {NEXT}{FINAL}", "It is 4."), (FINAL, "4"), ("", "4 <|")],
)
def test_it_is_known_where_content_begins(before: str, content: str, size: int) -> None:
    reader, text = ChannelReader(), f"{before}{content}{NEXT}{ANALYSIS}4"
    for at in range(0, len(text), size):
        reader.read(text[at : at + size])
    assert reader.content_start == len(before)


PARTS = (
    *MARKS,
    "assistant",
    "analysis",
    "final",
    "commentary",
    " to=functions.f",
    " ",
    "<|",
    "x",
)


@given(text=st.lists(st.sampled_from(PARTS), max_size=16).map("".join), data=st.data())
@example(text="<|channel|>" + "a" * (LONGEST_HEADER - 11) + "<|message|>b", data=None)
@example(text="<|channel|>" + "a" * (LONGEST_HEADER - 10) + "<|message|>b", data=None)
def test_no_cut_changes_what_is_read(text: str, data: st.DataObject | None) -> None:
    pieces = [*text] if data is None else data.draw(cut(text))
    assert read(pieces) == read([text])
    assert read(pieces, begun=True) == read([text], begun=True)


def test_an_answer_may_begin_in_the_middle_of_reasoning() -> None:
    assert read([f"Hm.{NEXT}{FINAL}4"], begun=True) == ("Hm.", "4")
    assert read(["Hm."], begun=True) == ("Hm.", "")


def test_who_does_not_want_reasoning_gets_the_rest() -> None:
    assert read([f"{ANALYSIS}Hm.{NEXT}{FINAL}4"], tells=False) == ("", "4")
    assert read([f"{ANALYSIS}Hm. <"], tells=False) == ("", "")


def test_text_is_said_as_it_comes() -> None:
    reader = ChannelReader()
    texts = (
        ANALYSIS,
        "One",
        " two",
        "<|end|>",
        "<|start|>assistant",
        FINAL,
        "Three",
        "<|",
        "x",
    )
    said = ["", "One", " two", "", "", "", "", "", ""]
    content = ["", "", "", "", "", "", "Three", "", "<|x"]
    assert list(map(reader.read, texts)) == list(zip(said, content, strict=True))
    assert (reader.found_reasoning, reader.over, reader.plain) == (True, True, False)


def test_where_there_are_no_messages_nothing_is_looked_for() -> None:
    reader = ChannelReader()
    assert reader.read("Yes") == ("", "Yes")
    assert (reader.found_reasoning, reader.over, reader.plain) == (False, True, True)


IDS = {"<|channel|>": 1, "analysis": 2, "<|message|>": 3, "final": 4}


def test_a_grammar_begins_behind_the_header_of_the_last_message() -> None:
    json = Grammar("json_object")
    assert Thinking(OSS, starts_open=True).grammar_marks(json, IDS.get) == ReasoningMarks(
        ((1, 4, 3),)
    )
    assert Thinking(OSS, starts_open=False).grammar_marks(json, IDS.get) == ReasoningMarks(
        ((1, 4, 3),), ((1, 2, 3),)
    )
    longer = {**IDS, " ": 5, "<|constrain|>": 6, "json": 7}
    two = ReasoningMarks(((1, 4, 3), (1, 4, 5, 6, 7, 3)))
    assert Thinking(OSS, starts_open=True).grammar_marks(json, longer.get) == two
    parted = {name: token for name, token in IDS.items() if name != "final"}
    assert Thinking(OSS, starts_open=False).grammar_marks(json, parted.get) is None


@pytest.mark.parametrize(
    ("end", "continued", "begun"),
    [
        ("<|start|>assistant", "", False),
        (f"<|start|>assistant{ANALYSIS}", "", True),
        (f"<|start|>assistant{FINAL}", "", None),
        (f"<|start|>assistant{FINAL}It is", "It is", None),
    ],
)
def test_the_prompts_end_tells_where_an_answer_begins(
    end: str, continued: str, begun: bool | None
) -> None:
    found = thinking_of(OSS, RenderedPrompt(end, continued, {}), tells=True)
    assert found == (None if begun is None else Thinking(OSS, begun))


def test_its_templates_are_known() -> None:
    assert (
        find_format("auto", "{{ '<|start|>assistant<|channel|>analysis<|message|>' }}") is OSS
    )
