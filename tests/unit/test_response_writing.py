"""Responses on their way out: few writes, tokens past the stream, tokens beside their text."""

import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from api.answering import Answer
from api.bodies import PdserveOptions
from api.choices import TextPiece
from api.endpoints import HttpCall, TextEndpoints
from api.gate import ADMIT_ALL, AdmissionControl, AdmissionRequest, AdmittedRequest, Deadline
from api.generator import PromptEvent, StageEvent, StreamFailed, TokenEvent
from api.logprobs import LogprobFormatter
from api.reasoning.formats import ReasoningParser
from api.request_parser import RequestParser
from api.responses.bodies import ResponsesBody
from api.responses.builder import ResponseBuilder
from api.responses.events import frame_of
from api.responses.open_item import ItemKind
from api.responses.shapes import MessageItem
from api.responses.to_chat import chat_of
from api.responses.writer import ResponseWriter
from api.served import read_whole_request
from api.sse import answer_body, event_stream
from engine.request import FinishReason, Logprob
from tests.fakes.responses import CODEC, TOOLS, events_of, response_of, summary
from tests.fakes.text import EOS, TEXT, FakeDoor, saying, served
from tests.unit.test_tapping import Outlet, Tapping

LENGTH = FinishReason.LENGTH
CAT = CODEC.encode("the cat sat")


async def writer(
    source: Any,  # noqa: ANN401
    parser: ReasoningParser = "none",
    gate: AdmissionControl = ADMIT_ALL,
    **fields: Any,  # noqa: ANN401
) -> ResponseWriter:
    body = ResponsesBody(input="hi", stream=True, **fields)
    model = replace(served(CODEC), reasoning_parser=parser)
    asked = await RequestParser(model, read_whole_request).parse_chat(chat_of(body), "outer", 9)
    return ResponseWriter(Answer(source, asked, gate), body, lambda: 7)


async def said(source: Any, outlet: Outlet | None, **fields: Any) -> str:  # noqa: ANN401
    """All that is sent, with ids as if they had been made up the same."""
    sent = outlet.sent if outlet else bytearray()
    ours = await writer(source, **fields)
    ours.builder._name = "x"
    async with aclosing(event_stream(ours, outlet)) as events:
        async for event in events:
            sent += event
    return sent.decode()


async def test_what_is_tapped_reads_as_what_is_streamed() -> None:
    plain, source = await said(Tapping(), None), Tapping()
    assert await said(source, Outlet(bytearray())) == plain
    assert len(source.tapped) > len(source.tokens) / 2
    assert summary(response_of(events_of(plain))) == [("message", TEXT)]


async def test_an_outlet_that_takes_nothing_now_has_all_streamed() -> None:
    plain, source = await said(Tapping(), None), Tapping()
    assert await said(source, Outlet(bytearray(), open=False)) == plain
    assert not source.tapped


async def test_characters_in_several_tokens_are_whole() -> None:
    fox = CODEC.encode("the 🦊 🦊")
    plain = await said(Tapping(fox), None)
    assert await said(Tapping(fox), Outlet(bytearray())) == plain
    assert summary(response_of(events_of(plain))) == [("message", "the 🦊 🦊")]


@pytest.mark.parametrize("fields", [{"tools": TOOLS}, {"stop": "東京"}])
async def test_nothing_is_tapped_where_text_is_looked_into(fields: dict[str, Any]) -> None:
    plain, source = await said(Tapping(), None, **fields), Tapping()
    assert await said(source, Outlet(bytearray()), **fields) == plain
    assert not source.tapped


async def test_nothing_is_tapped_while_another_message_may_be_reasoning() -> None:
    text = "<|channel|>final<|message|>the sea. the cat sat<|end|><|start|>assistant"
    text += "<|channel|>analysis<|message|>Hm. Hm.<|end|>"
    source, outlet = Tapping(CODEC.encode(text)), Outlet(bytearray())
    sent = await said(source, outlet, parser="openai_gptoss")
    expected = [("message", "the sea. the cat sat"), ("reasoning", "Hm. Hm.")]
    assert summary(response_of(events_of(sent))) == expected
    assert not source.tapped


async def test_reasoning_behind_a_message_has_no_other_message_behind_it() -> None:
    text = "<|channel|>final<|message|>the sea.<|end|><|start|>assistant"
    text += "<|channel|>analysis<|message|>Hm.<|end|>"
    ours = await writer(saying(text, CODEC), "openai_gptoss")
    sent = b"".join([one async for one in event_stream(ours)]).decode()
    assert summary(response_of(events_of(sent))) == [
        ("message", "the sea."),
        ("reasoning", "Hm."),
    ]


async def test_tokens_that_are_tapped_count() -> None:
    charged = list[int]()

    class Counting:
        deadline: Deadline | None = None

        def record_tokens(self, tokens: int, choice: int = 0) -> None:
            del choice
            charged.append(tokens)

    class Counted:
        @asynccontextmanager
        async def enter(self, visit: AdmissionRequest) -> AsyncGenerator[AdmittedRequest]:
            del visit
            yield Counting()

    source = Tapping()
    response = response_of(events_of(await said(source, Outlet(bytearray()), gate=Counted())))
    assert source.tapped
    assert response["usage"]["output_tokens"] == len(source.tokens) == sum(charged)


@pytest.mark.parametrize(("length", "here"), [(10, True), (150, False)])
async def test_a_long_response_is_put_together_where_it_holds_up_nobody(
    length: int, here: bool
) -> None:
    at = list[int]()

    def clock() -> float:
        at.append(threading.get_ident())
        return 7

    said = [TokenEvent((CAT[0],))] * length
    last = TokenEvent((EOS,), FinishReason.STOP)
    ours = await writer(FakeDoor(lambda request, leg: [*said, last]))
    ours.clock = clock
    await answer_body(ours)
    assert [one == threading.get_ident() for one in at] == [here]


async def test_what_is_asked_for_beside_the_text_is_told() -> None:
    events = (
        TokenEvent((CAT[0],), LENGTH, logprobs=((Logprob(CAT[0], -1.0, 1),),)),
        StageEvent("transfer", 0.5, 4096),
    )
    ours = await writer(
        FakeDoor(lambda request, leg: events),
        include=("message.output_text.logprobs",),
        return_tokens_as_token_ids=True,
        pdserve=PdserveOptions(timings=True),
    )
    sent = b"".join([one async for one in event_stream(ours)]).decode()
    response = response_of(events_of(sent))
    [token] = response["output"][0]["content"][0]["logprobs"]
    assert token["token"] == f"token_id:{CAT[0]}"
    assert response["pdserve"]["stages"] == [
        {"stage": "transfer", "seconds": 0.5, "num_bytes": 4096}
    ]


async def test_tokens_of_reasoning_are_not_those_of_equal_text() -> None:
    places = [*CODEC.encode("<think>"), CAT[0], *CODEC.encode("</think>"), CAT[0]]
    events = [
        TokenEvent((one,), logprobs=((Logprob(one, -float(number), 1),),))
        for number, one in enumerate(places)
    ]
    events.append(TokenEvent((CAT[1],), LENGTH))
    include = ("message.output_text.logprobs",)
    door = FakeDoor(lambda request, leg: events)
    ours = await writer(door, parser="qwen3", include=include)
    sent = b"".join([one async for one in event_stream(ours)]).decode()
    [_, message] = response_of(events_of(sent))["output"]
    first = message["content"][0]["logprobs"][0]
    assert first["logprob"] == -float(len(places) - 1)


@pytest.mark.parametrize("together", [True, False])
async def test_tokens_without_text_are_not_told_however_they_come(together: bool) -> None:
    """With `ignore_eos` an end token may stand in the middle of what comes at once."""
    tokens = (CAT[0], EOS, CAT[1])
    scored = tuple((Logprob(one, -1.0, 1),) for one in tokens)
    alone = [TokenEvent((one,), logprobs=((Logprob(one, -1.0, 1),),)) for one in tokens]
    events = [TokenEvent(tokens, logprobs=scored)] if together else alone
    events.append(TokenEvent((EOS,), FinishReason.STOP, logprobs=scored[1:2]))
    include = ("message.output_text.logprobs",)
    ours = await writer(FakeDoor(lambda request, leg: events), include=include)
    sent = b"".join([one async for one in event_stream(ours)]).decode()
    [message] = response_of(events_of(sent))["output"]
    spelt = [bytes(one["bytes"]).decode() for one in message["content"][0]["logprobs"]]
    assert spelt == [CODEC.decode([CAT[0]]), CODEC.decode([CAT[1]])]


async def test_tokens_are_written_down_once() -> None:
    """What ends an answer says all of them four times over, while other streams wait."""
    event = TokenEvent((CAT[0],), logprobs=((Logprob(CAT[0], -1.0, 1),),))
    include = ("message.output_text.logprobs",)
    ours = await writer(FakeDoor(lambda request, leg: [event] * 2), include=include)
    async with aclosing(event_stream(ours)) as events:
        delta = (await anext(events)).splitlines()[-2]
    [message] = ours.builder.items_so_far()
    assert isinstance(message, MessageItem)
    [written] = message.content[0].logprobs
    assert isinstance(written, Raw)
    assert bytes(written) in delta


async def test_one_burst_is_one_write_and_so_is_the_end() -> None:
    events = TokenEvent(CAT[:2]), TokenEvent(CAT[2:], LENGTH)
    ours = await writer(FakeDoor(lambda request, leg: events))
    first, last = [event async for event in event_stream(ours)]
    assert [one.count(b"event: ") for one in (first, last)] == [5, 5]
    assert first.count(b"output_text.delta") == 2  # its name, and its type
    assert ours.over


async def test_a_comment_comes_before_the_last_event() -> None:
    ours = await writer(saying("the", CODEC))
    sent = b"".join([one async for one in event_stream(ours, None, lambda: b": a word\n\n")])
    *_, comment, last, rest = sent.split(b"\n\n")
    assert (comment, rest) == (b": a word", b"")
    assert last.startswith(b"event: response.completed\n")


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "invalid_prompt"), (429, "rate_limit_exceeded"), (502, "server_error")],
)
async def test_a_failure_has_one_of_openais_codes(status: int, code: str) -> None:
    failed = StreamFailed("no")
    failed.status = status
    ours = await writer(FakeDoor(lambda request, leg: [TokenEvent(CAT), failed]))
    sent = b"".join([one async for one in event_stream(ours)]).decode()
    assert response_of(events_of(sent))["error"] == {"code": code, "message": "no"}


async def test_a_response_waits_at_the_gate() -> None:
    class Shut:
        @asynccontextmanager
        async def enter(self, visit: AdmissionRequest) -> AsyncGenerator[AdmittedRequest]:
            raise StreamFailed(f"{visit.max_tokens} at most")
            yield

    call = HttpCall({}, b'{"input": "hi", "max_output_tokens": 7}')
    endpoints = TextEndpoints(saying("the", CODEC), served(CODEC), gate=Shut())
    with pytest.raises(StreamFailed, match="7 at most"):
        await answer_body(await endpoints.responses(call))


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1))
def test_a_delta_is_its_event(texts: list[str]) -> None:
    """Written quickly or not: numbers and texts are all that differs."""
    builder = ResponseBuilder(LogprobFormatter(CODEC.vocabulary), lambda token: True)
    for kind in (ItemKind.REASONING, ItemKind.MESSAGE):
        for number, text in enumerate(texts, 1):
            reasoning = text if kind is ItemKind.REASONING else ""
            frame = builder.add_piece(
                TextPiece(0, "" if reasoning else text, (5,), number, reasoning=reasoning)
            )
            assert builder.open
            delta = builder.open.empty_delta(())
            fields: dict[str, Any] = {
                name: getattr(delta, name) for name in delta.__struct_fields__
            }
            whole = {**fields, "delta": text, "sequence_number": builder.next_number() - 1}
            builder._number -= 1
            assert frame.endswith(frame_of(type(delta)(**whole)))


async def test_a_prompt_that_was_cached_is_told() -> None:
    events = PromptEvent(3), TokenEvent(CAT, LENGTH)
    ours = await writer(FakeDoor(lambda request, leg: events))
    sent = b"".join([one async for one in event_stream(ours)]).decode()
    usage = response_of(events_of(sent))["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] == 3
