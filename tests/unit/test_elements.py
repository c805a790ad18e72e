"""Elements of a Kimi K3's answers are told apart by their tags, however an answer is cut."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher

from api.reasoning.elements import ElementReader
from api.reasoning.formats import REASONING_FORMATS
from api.reasoning.reader import Split
from api.reasoning.thinking import RenderedPrompt, Thinking, thinking_of
from api.tools.dialects.kimi_elements import MARKERS, closing, opening
from api.tools.dialects.known import DIALECTS
from api.tools.strict import ReasoningInGrammar
from api.tools.structured import StructuredOutput, calls_or_content, calls_or_structured
from api.tools.tool_choice import ToolSettings
from engine.grammars.sources import limits, to_llguidance
from engine.request import Grammar, ReasoningMarks
from tests.fakes.tools import cut, offered, read
from tests.unit.test_calls_beside_forms import FORM, TOKENIZER, TOOLS, fits
from tests.unit.test_strict_calls import grammar_of

K3 = REASONING_FORMATS["kimi_k3"]
THINK, END_OF_THINK = opening("think"), closing("think")
TEXT, END_OF_TEXT = opening("response"), closing("response")
END = closing("message")
CALLS = f'{opening("tools")}<|open|>call tool="f" index="1"<|sep|>{closing("call")}'
CALLED = f"{CALLS}{closing('tools')}"
READ: list[tuple[bool, str, Split]] = [
    (True, f"Hm.\n{END_OF_THINK}{TEXT}It is 4.\n{END_OF_TEXT}{END}", ("Hm.\n", "It is 4.\n")),
    (True, f"{THINK}Hm.{END_OF_THINK}{TEXT}It is 4.", ("Hm.", "It is 4.")),
    (True, f"{TEXT}It is 4.{END_OF_TEXT}", ("", "It is 4.")),
    (True, f"Hm.{END_OF_THINK}{TEXT}{END_OF_TEXT}{CALLED}{END}", ("Hm.", CALLED)),
    (True, f"Hm.{CALLED}", ("Hm.", CALLED)),
    (True, f"Hm.{END_OF_THINK}It is 4.{END}", ("Hm.", "It is 4.")),
    (True, f"Hm. <|close|>thin {END}", (f"Hm. <|close|>thin {END}", "")),
    (True, "Hm.<|close|>thi", ("Hm.<|close|>thi", "")),
    (True, f"a{END_OF_THINK}b{THINK}c{END_OF_THINK}d", ("ac", "bd")),
    (False, f"It is 4.{END_OF_TEXT}{END}", ("", "It is 4.")),
    (False, f"{THINK}Hm.{END_OF_THINK}{TEXT}It is 4.", ("Hm.", "It is 4.")),
    (False, f"I look.{END_OF_TEXT}{CALLED}{END}", ("", f"I look.{CALLED}")),
    (False, f"{CALLS}{TEXT}x{END}", ("", f"{CALLS}{TEXT}x{END}")),
    (False, "a <|b|> <|open|>res", ("", "a <|b|> <|open|>res")),
    (False, "", ("", "")),
]
"""Whether the answer begins in the middle of reasoning, the answer, and what it is."""


def split(pieces: Sequence[str], *, begun: bool, tells: bool = True) -> Split:
    reader = ElementReader(begun, tells)
    said = [*map(reader.read, pieces), reader.finish()]
    return "".join(thought for thought, _ in said), "".join(content for _, content in said)


@pytest.mark.parametrize(("begun", "text", "said"), READ)
def test_tags_tell_reasoning_from_content(begun: bool, text: str, said: Split) -> None:
    assert split([text], begun=begun) == said
    assert split([*text], begun=begun) == said
    for place in range(len(text)):
        assert split([text[:place], text[place:]], begun=begun) == said
    assert split([*text], begun=begun, tells=False) == ("", said[1])


PARTS = [THINK, END_OF_THINK, TEXT, END_OF_TEXT, END, CALLED, "<|", "<|open|>", "think", "a"]


@given(
    text=st.lists(st.sampled_from(PARTS), max_size=10).map("".join),
    begun=st.booleans(),
    data=st.data(),
)
def test_no_cut_changes_what_is_read(text: str, begun: bool, data: st.DataObject) -> None:
    assert split(data.draw(cut(text)), begun=begun) == split([text], begun=begun)


def test_it_is_known_where_content_begins_and_whether_reasoning_is_over() -> None:
    reader = ElementReader(True)
    assert (reader.found_reasoning, reader.over) == (True, False)
    assert reader.read(f"Hm.{END_OF_THINK}{TEXT}") == ("Hm.", "")
    assert reader.read("It is ") == ("", "It is ")
    assert reader.content_start == len(f"Hm.{END_OF_THINK}{TEXT}")
    assert reader.read("4.<|close") == ("", "4.")
    assert reader.content_start == len(f"Hm.{END_OF_THINK}{TEXT}")
    assert (reader.over, reader.plain) == (True, False)
    silent = ElementReader(False)
    silent.read("It is 4.")
    assert (silent.found_reasoning, silent.over, silent.content_start) == (False, True, 0)


@pytest.mark.parametrize(
    ("end", "continued", "variables", "begun"),
    [
        ("<|open|>message role=assistant<|sep|>", "", {}, True),
        ("<|open|>message role=assistant<|sep|>", "", {"thinking": False}, False),
        (THINK, "", {"thinking": False}, True),
        (TEXT, "", {}, False),
        (THINK + END_OF_THINK, "", {}, False),
        (f"{TEXT}It is", "It is", {}, False),
    ],
)
def test_the_prompts_end_tells_where_an_answer_begins(
    end: str, continued: str, variables: dict[str, object], begun: bool
) -> None:
    found = thinking_of(K3, RenderedPrompt(end, continued, variables), tells=True)
    assert found == Thinking(K3, begun)
    assert found.markers == MARKERS
    assert isinstance(found.reader(), ElementReader)


IDS = {"<|open|>": 1, "<|close|>": 2, "<|sep|>": 3, "think": 4, "response": 5}


def test_a_grammar_begins_with_the_text() -> None:
    form = Grammar("json_object")
    behind = ReasoningMarks(((1, 5, 3),))
    assert Thinking(K3, True).grammar_marks(form, IDS.get) == behind
    assert Thinking(K3, True).grammar_start(IDS.get) == (behind, ReasoningInGrammar())
    either = ReasoningMarks(((1, 5, 3),), ((1, 4, 3),))
    assert Thinking(K3, False).grammar_marks(form, IDS.get) == either
    parted = {name: token for name, token in IDS.items() if name != "response"}
    assert Thinking(K3, True).grammar_marks(form, parted.get) is None
    assert Thinking(K3, True).grammar_start(parted.get) == (None, ReasoningInGrammar())


def test_tags_are_special_tokens_wherever_a_grammar_has_them() -> None:
    """With tokens for them that the byte tokenizer has for bytes that no text has."""
    special = {name: IDS[name] for name in MARKERS}
    grammar = calls_or_structured(
        StructuredOutput(FORM), ToolSettings(TOOLS, "auto"), DIALECTS["kimi_k3"], ""
    )
    assert grammar
    source = to_llguidance(grammar, special.get)
    assert not any(name in source for name in MARKERS)
    arguments = (
        ("to", "string", "Rome"),
        ("at", "array", "[1, 2]"),
        ("far", "boolean", "true"),
    )
    inner = "".join(
        f'<|open|>argument key="{key}" type="{kind}"<|sep|>{value}{closing("argument")}'
        for key, kind, value in arguments
    )
    call = f'<|open|>call tool="trip" index="1"<|sep|>{inner}{closing("call")}'
    answer = f"{END_OF_TEXT}{opening('tools')}{call}{closing('tools')}"
    for right, wrong in (("", ""), ('"array"', '"object"'), ("Rome", "Bonn")):
        text = answer.replace(right, wrong)
        for name, token in special.items():
            text = text.replace(name, chr(token))
        matcher = LLMatcher(TOKENIZER, source, log_level=0, limits=limits())
        fitting = matcher.try_consume_tokens([*text.encode()]) == len(text)
        assert (fitting and matcher.is_accepting()) is not bool(wrong)


def test_calls_come_behind_a_text_that_is_empty_where_another_form_was_possible() -> None:
    use = ToolSettings(TOOLS, "auto")
    dialect = DIALECTS["kimi_k3"]
    grammar = calls_or_structured(StructuredOutput(FORM), use, dialect, "")
    assert grammar
    call = CALLED.replace('"f"', '"clock"')
    for answer in (f"{END_OF_TEXT}{call}", call):
        assert fits(grammar, answer)
        found = read(calls_or_content(dialect), [*answer], TOOLS)
        assert (found.content, found.calls) == ("", [("clock", "{}", True)])
    assert fits(grammar, '{"ok": true}')
    assert not fits(grammar, f"It is 4.{END_OF_TEXT}{call}")


def test_a_text_among_calls_is_held_to_no_form() -> None:
    grammar = grammar_of("kimi_k3", tools=offered())
    call = CALLED.replace('"f"', '"clock"')
    assert fits(grammar, f"It is 4.{END_OF_TEXT}{call}{END}")
    assert fits(grammar, f"{THINK}Hm.{END_OF_THINK}{TEXT}It is 4.{END_OF_TEXT}{END}")
    assert not fits(grammar, f"{TEXT}It is 4.{END_OF_TEXT}{CALLED}{END}")
