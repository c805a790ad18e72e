"""An answer on its way out: as one body, or as a stream of server-sent events."""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial

import msgspec

from api.answering import TapFactory
from api.choices import TextPiece
from api.encoding import aside
from api.envelopes import AnswerWriter
from api.errors import SERVER_ERROR, ErrorBody, body_of, error_body
from api.generator import StreamFailed
from api.messages.writer import MessageWriter
from api.responses.writer import ResponseWriter
from api.tapping import Outlet, Spoken, SpokenDeltas
from api.token_answers import TokenWriter

AnyWriter = AnswerWriter | TokenWriter | ResponseWriter | MessageWriter
Comment = Callable[[], bytes]
PLACE = 20  # a token's log-probabilities are as much work as so many characters
EVENT = 20  # and so is an event, which some answers are made of also where none is sent
log = logging.getLogger(__name__)
OUR_MISTAKE = error_body(SERVER_ERROR, "The server made a mistake.")


def silence() -> bytes:
    """No comment."""
    return b""


async def whole(writer: AnyWriter) -> bytes:
    """The body of an answer that is not streamed; raises StreamFailed."""
    async with aclosing(writer.answer.pieces()) as pieces:
        said = [piece async for piece in pieces]
    work = PLACE * (
        sum(len(piece.scored_tokens) for piece in said) + writer.num_prompt_logprobs
    )
    if writer.answer.request.calling:  # all of the text is looked at, a letter at a time
        work += sum(len(piece.text) for piece in said)
    if isinstance(writer, ResponseWriter | MessageWriter):
        work += EVENT * len(said)
    return await aside(work, lambda: msgspec.json.encode(writer.whole(said)))


async def frames(
    writer: AnyWriter, outlet: Outlet | None = None, comment: Comment = silence
) -> AsyncGenerator[bytes]:
    """The events of a stream, together what came together; some go to the outlet at once.

    What fails before the first is raised, later it is told. Nothing comes before the first
    piece: until then the request may still be refused. The last piece leaves with the end,
    before which stands the comment.
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
        said += writer.failing(*_told(writer, failure))
    else:
        said = (said or b"") + writer.closing()
    yield said + comment() + writer.ending()


def _tap(writer: AnyWriter, outlet: Outlet) -> TapFactory | None:
    match writer:
        case AnswerWriter():
            return partial(Spoken, writer, outlet)
        case ResponseWriter() | MessageWriter():
            return partial(SpokenDeltas, writer.story, outlet)
    return None


def _told(writer: AnyWriter, failure: Exception) -> tuple[int, ErrorBody]:
    if isinstance(failure, StreamFailed):
        return failure.status, body_of(failure)
    outer_id = writer.answer.request.outer_id
    log.error("request_id=%s broke off", outer_id, exc_info=failure)
    return SERVER_ERROR, OUR_MISTAKE


async def _frame(writer: AnyWriter, piece: TextPiece) -> bytes:
    """Log-probabilities are work."""
    return await aside(len(piece.scored_tokens) * PLACE, partial(writer.frame, piece))
