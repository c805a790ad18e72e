"""Which tokens a response's text is made of."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from api.generator import TokenEvent
from api.logprobs import ChatTokenLogprob
from api.reasoning.formats import ReasoningParser
from api.responses.tokens import PendingTokens
from api.sse import event_stream
from api.text.stopping import StopStrings
from engine.request import FinishReason, Logprob
from tests.fakes.responses import CALL, CLOCK, CODEC, TOOLS, events_of, response_of
from tests.fakes.text import EOS, FakeDoor
from tests.unit.test_response_writing import writer

FIRST: list[tuple[ReasoningParser, str, int]] = [
    *(("none", "the sea.", at_once) for at_once in (1, 3, 40, 100)),
    *(("qwen3", "<think>Hm.</think>", at_once) for at_once in (1, 3, 40, 100)),
    *(("qwen3", f"<think>{CALL} l></think>", at_once) for at_once in (3, 40, 400)),
]


def tokens(*spelt: str | bytes) -> list[ChatTokenLogprob]:
    ready = [one if isinstance(one, bytes) else one.encode() for one in spelt]
    return [ChatTokenLogprob(repr(one), -1.0, [*one], ()) for one in ready]


@pytest.mark.parametrize(
    ("spelt", "text", "told", "left"),
    [
        (["the", " sea"], "the sea", ["the", " sea"], []),
        (["the", " sea"], "the", ["the"], [" sea"]),
        (["</think>", "\n", "then"], "then", ["then"], []),
        (["</think>", " then"], "then", [" then"], []),
        ([b"\xf0\x9f", b"\xa6\x8a", "!"], "🦊", [b"\xf0\x9f", b"\xa6\x8a"], ["!"]),
        (["think", "n"], "n", ["n"], []),
        (["a"], "b", ["a"], []),
        ([], "b", [], []),
    ],
)
def test_tokens_are_told_beside_their_text(
    spelt: list[str | bytes], text: str, told: list[str | bytes], left: list[str | bytes]
) -> None:
    pending = PendingTokens(tokens(*spelt))
    assert pending.take_for(text) == tokens(*told)
    assert pending.tokens == tokens(*left)


@pytest.mark.parametrize(
    ("spelt", "texts", "told"),
    [
        (["aac", "bcbc"], ["aa", "c"], [["aac"], []]),
        (["the", " s", "ea"], ["t", "h", "e s", "ea"], [["the"], [], [" s"], ["ea"]]),
        (["lolo", "lo"], ["lo", "lolo"], [["lolo"], ["lo"]]),
        (["abcd", "c"], ["ab", "cdc"], [["abcd"], ["c"]]),
        (["ab<call>", "b"], ["a", "b"], [["ab<call>"], []]),
        (["a<call>", "b"], ["a", "b"], [["a<call>"], ["b"]]),
        (["ab", "c"], ["a", "d"], [["ab"], ["c"]]),
    ],
)
def test_a_token_that_is_sent_in_two_texts_is_told_once(
    spelt: list[str], texts: list[str], told: list[list[str]]
) -> None:
    """A stop string that might have begun within it has held its end back."""
    pending = PendingTokens(tokens(*spelt))
    assert [pending.take_for(text) for text in texts] == [tokens(*one) for one in told]


def test_what_is_before_a_text_at_least_is_none_of_it() -> None:
    pending = PendingTokens(tokens("}", "}", "}"))
    assert pending.take_for("}", behind=2) == tokens("}")
    assert pending.tokens == []
    pending = PendingTokens(tokens("ab", "c", "de"))
    assert pending.take_for("?", behind=3) == tokens("de")


def test_what_became_of_dropped_tokens_is_no_text() -> None:
    pending = PendingTokens(tokens("ab<call>"))
    pending.take_for("a")
    pending.clear()
    pending.tokens += tokens("b")
    assert pending.take_for("b") == tokens("b")


@given(
    spelt=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=8),
    stop=st.text("ab", min_size=2, max_size=4),
)
def test_each_token_of_a_text_is_told_once_whatever_a_stop_string_holds_back(
    spelt: list[str], stop: str
) -> None:
    pending, matcher = PendingTokens(), StopStrings.of([stop]).matcher()
    told, sent = list[ChatTokenLogprob](), ""
    for number, (one, token) in enumerate(zip(spelt, tokens(*spelt), strict=True), 1):
        pending.tokens.append(replace(token, logprob=-float(number)))
        text = matcher.read(one) + (matcher.finish() if number == len(spelt) else "")
        if text:
            told += pending.take_for(text)
            sent += text
    begins = accumulate(map(len, spelt), initial=0)
    of_text = [at for at, begin in enumerate(begins, 1) if begin < len(sent)]
    assert [-one.logprob for one in told] == of_text


def test_what_is_held_back_is_not_spelt_again_for_each_text() -> None:
    """A client may have its own stop string hold back as much as it likes."""
    spelt = list[int]()

    class Letters(tuple[int, ...]):
        def __bytes__(self) -> bytes:
            spelt.extend(self)
            return bytes([*self])

    pending = PendingTokens(
        [ChatTokenLogprob("a", -1.0, Letters(b"a"), ()) for _ in range(1000)]
    )
    assert [len(pending.take_for("a")) for _ in range(500)] == [1] * 500
    assert len(pending.tokens) == 500
    assert len(spelt) <= 2 * 500


@pytest.mark.parametrize("said", [">", "l>", "}\n}", "tool_call> the cat", "東京>"])
@pytest.mark.parametrize(("parser", "first", "at_once"), FIRST)
async def test_tokens_of_calls_are_not_those_of_equal_text(
    parser: ReasoningParser, first: str, said: str, at_once: int
) -> None:
    before = CODEC.encode(f"{first}{CALL}{said}{CLOCK}")
    tokens = before + CODEC.encode(said)
    scored = [(Logprob(token, -float(at), 1),) for at, token in enumerate(tokens)]
    events = [
        TokenEvent(tokens[at : at + at_once], logprobs=tuple(scored[at : at + at_once]))
        for at in range(0, len(tokens), at_once)
    ]
    events.append(TokenEvent((EOS,), FinishReason.STOP, logprobs=((Logprob(EOS, 0.0, 1),),)))
    include = ("message.output_text.logprobs",)
    ours = await writer(
        FakeDoor(lambda request, leg: events), parser, include=include, tools=TOOLS
    )
    sent = b"".join([one async for one in event_stream(ours)]).decode()
    *_, last = response_of(events_of(sent))["output"]
    assert last["content"][0]["text"] == said
    told = [-one["logprob"] for one in last["content"][0]["logprobs"]]
    assert told == list(range(len(before), len(tokens)))


@pytest.mark.parametrize("at_once", [1, 2, 3, 7, 40])
@pytest.mark.parametrize(
    ("thought", "said"),
    [("4", "4"), ("It is 4.", "It is 4."), ("4 <t", "<t"), ("k", "think"), (None, "<t")],
)
async def test_tokens_of_reasoning_are_not_those_of_equal_text(
    thought: str | None, said: str, at_once: int
) -> None:
    """Several may come in one step, where drafts were right."""
    before = CODEC.encode(f"<think>{thought}</think>") if thought else ()
    tokens = (*before, *CODEC.encode(said))
    scored = [(Logprob(token, -float(at), 1),) for at, token in enumerate(tokens)]
    events = [
        TokenEvent(tokens[at : at + at_once], logprobs=tuple(scored[at : at + at_once]))
        for at in range(0, len(tokens), at_once)
    ]
    events.append(TokenEvent((EOS,), FinishReason.STOP, logprobs=((Logprob(EOS, 0.0, 1),),)))
    include = ("message.output_text.logprobs",)
    for tools in ([], TOOLS):
        ours = await writer(
            FakeDoor(lambda request, leg: events), "qwen3", include=include, tools=tools
        )
        sent = b"".join([one async for one in event_stream(ours)]).decode()
        *_, last = response_of(events_of(sent))["output"]
        assert last["content"][0]["text"] == said
        told = [-one["logprob"] for one in last["content"][0]["logprobs"]]
        assert told == list(range(len(before), len(tokens)))
