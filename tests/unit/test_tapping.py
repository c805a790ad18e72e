"""Tokens that go past the stream: a client is told the same, byte for byte."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from api.answering import Answer
from api.completions import CompletionFormat
from api.envelopes import AnswerWriter
from api.gate import ADMIT_ALL, AdmissionControl, AdmissionRequest, AdmittedRequest, Deadline
from api.generator import WHOLE, Event, Leg, PromptEvent, Tap, TokenEvent
from api.logprobs import LogprobFormatter
from api.sse import event_stream
from engine.request import FinishReason, Request
from tests.fakes.asking import complete
from tests.fakes.text import TEXT, byte_level

CODEC = byte_level()
NOTHING: Mapping[str, Any] = {}
SAID = CODEC.encode(TEXT)


@dataclass
class Outlet:
    """Takes what it is told to."""

    sent: bytearray
    open: bool = True

    def ready(self) -> bool:
        return self.open

    def write(self, body: bytes) -> None:
        assert body
        self.sent += body


@dataclass
class Tapping:
    """A Generator that offers each token to the tap once one was yielded."""

    tokens: Sequence[int] = SAID
    finish: FinishReason = FinishReason.LENGTH
    tapped: list[int] = field(default_factory=list)
    given: bool = False

    async def stream(
        self, request: Request, leg: Leg = WHOLE, tap: Tap | None = None
    ) -> AsyncGenerator[Event]:
        self.given = tap is not None
        yield PromptEvent(0)
        yield TokenEvent(tuple(self.tokens[:1]))
        for token in self.tokens[1:-1]:
            if tap and tap.take((token,)):
                self.tapped.append(token)
            else:
                yield TokenEvent((token,))
        yield TokenEvent(tuple(self.tokens[-1:]), self.finish)


async def said(
    source: Tapping,
    outlet: Outlet | None,
    fields: Mapping[str, Any] = NOTHING,
    gate: AdmissionControl = ADMIT_ALL,
) -> bytes:
    asked = await complete({"stream": True, **fields})
    form = CompletionFormat(LogprobFormatter(CODEC.vocabulary))
    writer = AnswerWriter(Answer(source, asked, gate), form, 7)
    sent = outlet.sent if outlet else bytearray()
    async with aclosing(event_stream(writer, outlet)) as events:
        async for event in events:
            sent += event
    return bytes(sent)


async def test_what_is_tapped_reads_as_what_is_streamed() -> None:
    plain, source = await said(Tapping(), None), Tapping()
    assert await said(source, Outlet(bytearray())) == plain
    assert len(source.tapped) > len(SAID) / 2


async def test_an_outlet_that_takes_nothing_now_has_all_streamed() -> None:
    plain, source = await said(Tapping(), None), Tapping()
    assert await said(source, Outlet(bytearray(), open=False)) == plain
    assert not source.tapped


async def test_characters_in_several_tokens_are_whole() -> None:
    """Some bytes of a fox go to the tap, and some come as events."""
    fox = CODEC.encode("the 🦊 🦊")
    assert len(fox) > len(CODEC.encode("the")) + 4
    plain = await said(Tapping(fox), None)
    assert await said(Tapping(fox), Outlet(bytearray())) == plain


async def test_tokens_that_are_tapped_count() -> None:
    usage: dict[str, Any] = {"stream_options": {"include_usage": True}}
    told = await said(source := Tapping(), Outlet(bytearray()), usage)
    assert source.tapped
    assert f'"completion_tokens":{len(SAID)}'.encode() in told


@pytest.mark.parametrize(
    "fields",
    [
        {"return_token_ids": True},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        {"stop": "東京"},
        {"echo": True, "max_tokens": 0},
        {"n": 2},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_nothing_is_tapped_where_more_than_text_is_to_be_told(
    fields: dict[str, Any],
) -> None:
    plain, source = await said(Tapping(), None, fields), Tapping()
    assert await said(source, Outlet(bytearray()), fields) == plain
    assert not source.tapped


async def test_who_is_let_in_is_charged_for_what_is_tapped() -> None:
    charged = list[int]()

    @dataclass
    class Counting:
        deadline: Deadline | None = None

        def record_tokens(self, tokens: int, choice: int = 0) -> None:
            charged.append(tokens)

    class Counted:
        @asynccontextmanager
        async def enter(self, visit: AdmissionRequest) -> AsyncGenerator[AdmittedRequest]:
            yield Counting()

    source = Tapping()
    await said(source, Outlet(bytearray()), gate=Counted())
    assert source.tapped
    assert sum(charged) == len(SAID)
