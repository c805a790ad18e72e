"""Turns an answer into one HTTP body, or into a stream of server-sent events."""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial

import msgspec

from api.answering import TapFactory
from api.choices import TextPiece
from api.encoding import run_off_loop
from api.envelopes import AnswerWriter
from api.errors import SERVER_ERROR, ApiError, ErrorBody, body_of, error_body
from api.generator import StreamFailed
from api.messages.writer import MessageWriter
from api.responses.writer import ResponseWriter
from api.taps import ChunkTap, DeltaTap, Outlet
from api.token_answers import TokenWriter

AnyWriter = AnswerWriter | TokenWriter | ResponseWriter | MessageWriter
Comment = Callable[[], bytes]
PLACE = 20  # one token's log-probabilities are as much work as this many characters
EVENT = 20  # so is one event; some answers consist of events even if they are not streamed
log = logging.getLogger(__name__)
OUR_MISTAKE = error_body(SERVER_ERROR, "The server made a mistake.")


def no_comment() -> bytes:
    """No comment."""
    return b""


async def answer_body(writer: AnyWriter) -> bytes:
    """The body of an answer that is not streamed; raises StreamFailed and TooBusy."""
    async with aclosing(writer.answer.pieces()) as pieces:
        said = [piece async for piece in pieces]
    work = PLACE * (
        sum(len(piece.scored_tokens) for piece in said) + writer.num_prompt_logprobs
    )
    if writer.answer.request.calling:  # all of the text is parsed, letter by letter
        work += sum(len(piece.text) for piece in said)
    if isinstance(writer, ResponseWriter | MessageWriter):
        work += EVENT * len(said)
    return await run_off_loop(work, lambda: msgspec.json.encode(writer.whole(said)))


async def event_stream(
    writer: AnyWriter, outlet: Outlet | None = None, comment: Comment = no_comment
) -> AsyncGenerator[bytes]:
    """The events of a stream; plain tokens may go straight to the outlet instead.

    A failure before the first piece is raised, as the response may still become an HTTP error;
    a later one becomes an event. The last piece is sent with the closing events, and the
    comment before the end of the stream.
    """
    said: bytes | None = None
    tapped = _tap(writer, outlet) if outlet else None
    left = len(writer.answer.choices)
    try:
        async with aclosing(writer.answer.pieces(tapped)) as pieces:
            async for piece in pieces:
                if said is None:
                    said = writer.opening()
                said += (
                    writer.frame(piece)
                    if not piece.scored_tokens
                    else await _frame(writer, piece)
                )
                left -= piece.finish is not None
                if said and left:
                    yield said
                    said = b""
    except Exception as failure:
        if said is None:
            raise
        said += writer.failing(*_error_of(writer, failure))
    else:
        said = (said or b"") + writer.closing()
    yield said + comment() + writer.ending()


def _tap(writer: AnyWriter, outlet: Outlet) -> TapFactory | None:
    match writer:
        case AnswerWriter():
            return partial(ChunkTap, writer, outlet)
        case ResponseWriter() | MessageWriter():
            return partial(DeltaTap, writer.builder, outlet)
    return None


def _error_of(writer: AnyWriter, failure: Exception) -> tuple[int, ErrorBody]:
    if isinstance(failure, StreamFailed | ApiError):
        return failure.status, body_of(failure)
    outer_id = writer.answer.request.outer_id
    log.error("request_id=%s broke off", outer_id, exc_info=failure)
    return SERVER_ERROR, OUR_MISTAKE


async def _frame(writer: AnyWriter, piece: TextPiece) -> bytes:
    """Write a piece; with many log-probabilities, in a thread."""
    return await run_off_loop(len(piece.scored_tokens) * PLACE, partial(writer.frame, piece))
