"""The events of a stream: written quickly or not they are the same; few writes carry them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.answering import Answer
from api.chat import ChatFormat
from api.choices import TextPiece
from api.completions import CompletionFormat
from api.envelopes import AnswerWriter, sse_event
from api.generated import DONE
from api.generator import StreamFailed, TokenEvent
from api.logprobs import LogprobFormatter
from api.sse import event_stream
from engine.request import FinishReason
from tests.fakes.asking import Fields, chat, complete
from tests.fakes.text import FakeDoor, byte_level

CODEC = byte_level()
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
RUNNING = {"stream": True, "stream_options": {"continuous_usage_stats": True}}
CAT = CODEC.encode("the cat sat")


async def writer(fields: Fields, *, talks: bool, door: FakeDoor | None = None) -> AnswerWriter:
    telling = LogprobFormatter(CODEC.vocabulary)
    asked = await (chat(fields) if talks else complete(fields))
    form = ChatFormat(telling) if talks else CompletionFormat(telling)
    return AnswerWriter(Answer(door or FakeDoor(lambda request, leg: ()), asked), form, 7)


@pytest.mark.parametrize("talks", [True, False])
@pytest.mark.parametrize("fields", [{}, USAGE, RUNNING, {"return_token_ids": True}, {"n": 2}])
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=4))
async def test_an_event_is_its_chunk(talks: bool, fields: Fields, texts: list[str]) -> None:
    ours = await writer(fields, talks=talks)
    for number, text in enumerate(texts, 1):
        index = number % len(ours.answer.choices)
        for finish in (None, FinishReason.LENGTH):
            for reasoning in ("", "Hm."):
                piece = TextPiece(index, text, (5,), number, finish, reasoning=reasoning)
                chunks = ours.chunks(piece)
                assert ours.frame(piece) == b"".join(map(sse_event, chunks))


@pytest.mark.parametrize("fields", [{}, USAGE])
async def test_one_burst_is_one_write_and_so_is_the_end(fields: Fields) -> None:
    """The role comes with the first text, and the last text with what closes the stream."""
    events = TokenEvent(CAT[:2]), TokenEvent(CAT[2:], FinishReason.LENGTH)
    ours = await writer(fields, talks=True, door=FakeDoor(lambda request, leg: events))
    first, last = [said async for said in event_stream(ours)]
    assert [said.count(b"data: ") for said in (first, last)] == [2, 2 + bool(fields)]
    assert last.endswith(DONE)


async def test_what_was_said_last_is_not_lost_to_a_failure_behind_it() -> None:
    events = TokenEvent(CAT, FinishReason.LENGTH), StreamFailed("too late")
    ours = await writer({}, talks=False, door=FakeDoor(lambda request, leg: events))
    (only,) = [said async for said in event_stream(ours)]
    assert b"the cat sat" in only
    assert b"too late" in only
