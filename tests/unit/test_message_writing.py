"""Messages on their way out: however they were cut, past the stream or along it."""

import threading
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.answering import Answer
from api.bodies import PdserveOptions
from api.choices import TextPiece
from api.generator import Event, PromptEvent, StageEvent, StreamFailed, TokenEvent
from api.messages.bodies import MessagesBody, read_messages
from api.messages.builder import MessageBuilder
from api.messages.open_block import BlockKind, OpenBlock
from api.messages.shapes import ToolUseBlock
from api.messages.to_chat import chat_of
from api.messages.writer import MessageWriter
from api.reasoning.formats import ReasoningParser
from api.request_parser import RequestParser
from api.served import read_whole_request
from api.sse import answer_body, event_stream
from engine.request import FinishReason
from tests.fakes.messages import (
    CALL,
    CLOCK,
    CODEC,
    TOOLS,
    checked,
    events_of,
    failure_of,
    message_of,
    summary,
)
from tests.fakes.text import EOS, TEXT, FakeDoor, served
from tests.unit.test_tapping import Outlet, Tapping

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
ANSWERS = st.lists(
    st.sampled_from(
        [
            *("<think>", "</think>", "Hm.", "\n", " the sea ", "<tool_call>", "grüße 🦊", "{"),
            *(CALL, CLOCK, CALL[:-20], "</tool_call>", "and", "東京"),
        ]
    ),
    max_size=6,
).map("".join)
WISHES = st.fixed_dictionaries(
    {},
    optional={
        "tools": st.just(TOOLS),
        "tool_choice": st.sampled_from(
            [{"type": "none"}, {"type": "auto", "disable_parallel_tool_use": True}]
        ),
        "stop_sequences": st.just(["and", "京"]),
        "thinking": st.sampled_from(
            [{"type": "disabled"}, {"type": "adaptive", "display": "omitted"}]
        ),
    },
)


def body_of(**fields: object) -> MessagesBody:
    hi = [{"role": "user", "content": "hi"}]
    asked = {"messages": hi, "max_tokens": 150, "stream": True, **fields}
    return read_messages(msgspec.json.encode(asked))


async def writer(
    source: Any,  # noqa: ANN401
    body: MessagesBody,
    parser: ReasoningParser = "none",
) -> MessageWriter:
    model = replace(served(CODEC, context=999), reasoning_parser=parser)
    asked = await RequestParser(model, read_whole_request).parse_chat(chat_of(body), "outer", 9)
    return MessageWriter(Answer(source, asked), body)


async def said(
    source: Any,  # noqa: ANN401
    outlet: Outlet | None,
    parser: ReasoningParser = "none",
    **fields: object,
) -> str:
    sent = outlet.sent if outlet else bytearray()
    ours = await writer(source, body_of(**fields), parser)
    async with aclosing(event_stream(ours, outlet)) as events:
        async for event in events:
            sent += event
    assert ours.over
    return sent.decode()


def cut(text: str, places: Sequence[int], finish: FinishReason) -> list[Event]:
    """Tokens of a text, so many of them at a time."""
    tokens = [*CODEC.encode(text), *([EOS] if finish is STOP else ())] or [EOS]
    bounds = sorted({0, len(tokens), *(place % (len(tokens) + 1) for place in places)})
    runs = [tuple(tokens[a:b]) for a, b in pairwise(bounds)]
    events: list[Event] = [TokenEvent(run) for run in runs[:-1]]
    return [PromptEvent(0), *events, TokenEvent(runs[-1], finish)]


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """But for names of calls, which are new each time."""
    blocks = [{**one, "id": "" if "id" in one else None} for one in message["content"]]
    return {**message, "content": blocks}


@given(
    text=ANSWERS,
    fields=WISHES,
    places=st.lists(st.integers(0, 400), max_size=30),
    finish=st.sampled_from([STOP, LENGTH]),
)
async def test_a_stream_adds_up_to_the_whole_however_it_was_cut(
    text: str, fields: dict[str, Any], places: list[int], finish: FinishReason
) -> None:
    one = FakeDoor(lambda request, leg: cut(text, (), finish))
    other = FakeDoor(lambda request, leg: cut(text, places, finish))
    at_once = checked(
        msgspec.json.decode(await answer_body(await writer(one, body_of(**fields), "qwen3")))
    )
    streamed = message_of(events_of(await said(other, None, "qwen3", **fields)))
    assert plain(streamed) == plain(at_once)


async def test_what_is_tapped_reads_as_what_is_streamed() -> None:
    streamed, source = await said(Tapping(), None), Tapping()
    assert await said(source, Outlet(bytearray())) == streamed
    assert len(source.tapped) > len(source.tokens) / 2
    assert summary(message_of(events_of(streamed))) == [("text", TEXT)]


async def test_an_outlet_that_takes_nothing_now_has_all_streamed() -> None:
    streamed, source = await said(Tapping(), None), Tapping()
    assert await said(source, Outlet(bytearray(), open=False)) == streamed
    assert not source.tapped


@pytest.mark.parametrize(
    "fields", [{"tools": TOOLS}, {"stop_sequences": ["東京"]}, {"max_tokens": 0}]
)
async def test_nothing_is_tapped_where_text_is_looked_into(fields: dict[str, Any]) -> None:
    streamed, source = await said(Tapping(), None, **fields), Tapping()
    assert await said(source, Outlet(bytearray()), **fields) == streamed
    assert not source.tapped


async def test_nothing_is_tapped_while_a_thought_is_open() -> None:
    text = "<think>the cat sat on the mat"
    source = Tapping(CODEC.encode(text))
    sent = await said(source, Outlet(bytearray()), "qwen3")
    assert summary(message_of(events_of(sent))) == [("thinking", "the cat sat on the mat")]
    assert not source.tapped


async def test_a_thought_that_is_hidden_is_in_no_delta_but_seen_to_go_on() -> None:
    text = "<think>the cat sat</think>the sea"
    source = FakeDoor(lambda request, leg: cut(text, range(99), STOP))
    sent = await said(
        source, None, "qwen3", thinking={"type": "adaptive", "display": "omitted"}
    )
    assert "cat" not in sent
    assert sent.count('"delta":{"type":"thinking_delta","thinking":""}') >= 2
    assert sent.count("signature_delta") == 1
    assert summary(message_of(events_of(sent))) == [("thinking", ""), ("text", "the sea")]


@pytest.mark.parametrize(("length", "here"), [(10, True), (150, False)])
async def test_a_long_message_is_put_together_where_it_holds_up_nobody(
    length: int, here: bool
) -> None:
    at = set[int]()

    class Seen(MessageBuilder):
        def add_piece(self, piece: TextPiece) -> bytes:
            at.add(threading.get_ident())
            return super().add_piece(piece)

    said = [TokenEvent((CODEC.encode("the")[0],))] * length
    last = TokenEvent((EOS,), STOP)
    ours = await writer(FakeDoor(lambda request, leg: [*said, last]), body_of(max_tokens=500))
    ours.builder = Seen()
    await answer_body(ours)
    assert [one == threading.get_ident() for one in at] == [here]


@pytest.mark.parametrize(
    ("said", "told"),
    [('{"a": 1.50}', b'{"a": 1.50}'), ("[1]", b"{}"), ("1", b"{}"), ("", b"{}")],
)
def test_an_input_is_told_as_it_was_said_if_it_is_an_object(said: str, told: bytes) -> None:
    block = OpenBlock(BlockKind.TOOL_USE, 0, texts=[said]).block()
    assert isinstance(block, ToolUseBlock)
    assert bytes(block.input) == told


async def test_stages_are_told_where_they_were_asked_for() -> None:
    events = (StageEvent("transfer", 0.5, 4096), TokenEvent((EOS,), STOP))
    fields: Any = {"pdserve": {"timings": True}}
    sent = await said(FakeDoor(lambda request, leg: events), None, **fields)
    told = message_of(events_of(sent))["pdserve"]
    assert told["stages"] == [{"stage": "transfer", "seconds": 0.5, "num_bytes": 4096}]
    ours = await writer(FakeDoor(lambda request, leg: events), body_of(**fields))
    assert msgspec.json.decode(await answer_body(ours))["pdserve"] == told
    assert body_of(**fields).pdserve == PdserveOptions(timings=True)


@pytest.mark.parametrize(
    ("status", "kind"), [(502, "api_error"), (503, "overloaded_error"), (504, "timeout_error")]
)
async def test_what_fails_in_the_middle_is_told_by_the_type_of_its_status(
    status: int, kind: str
) -> None:
    failure = StreamFailed("no luck")
    failure.status = status
    events: list[Any] = [TokenEvent((CODEC.encode("the")[0],)), failure]
    sent = await said(FakeDoor(lambda request, leg: events), None)
    blocks, error = failure_of(sent)
    assert error == {"type": kind, "message": "no luck"}
    assert len(blocks) == 1
