"""An answer on its way out: as one body, or as a stream of server-sent events."""

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

import msgspec

from api.asking import aside
from api.envelopes import Writer
from api.errors import SERVER_ERROR, body_of, error_body
from api.generated import DONE
from api.generator import StreamFailed

PLACE = 20  # a token's log-probabilities are as much work as so many characters
log = logging.getLogger(__name__)
OUR_MISTAKE = error_body(SERVER_ERROR, "The server made a mistake.")


async def whole(writer: Writer) -> bytes:
    """The body of an answer that is not streamed; raises StreamFailed."""
    async with aclosing(writer.answer.pieces()) as pieces:
        said = [piece async for piece in pieces]
    places = sum(len(piece.places) for piece in said) + writer.num_foretold
    return await aside(places * PLACE, lambda: msgspec.json.encode(writer.whole(said)))


async def frames(writer: Writer) -> AsyncGenerator[bytes]:
    """The events of a stream. What fails before the first is raised, later it is told."""
    begun = False
    try:
        async with aclosing(_chunks(writer)) as chunks:
            async for chunk in chunks:
                begun = True
                yield frame(chunk)
    except StreamFailed as failure:
        if not begun:
            raise
        yield frame(body_of(failure))
    except Exception:
        if not begun:
            raise
        log.exception("request_id=%s broke off", writer.answer.asked.outer_id)
        yield frame(OUR_MISTAKE)
    yield DONE


def frame(chunk: msgspec.Struct) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


async def _chunks(writer: Writer) -> AsyncGenerator[msgspec.Struct]:
    """Nothing comes before the first piece: until then the request may still be refused."""
    begun = False
    async with aclosing(writer.answer.pieces()) as pieces:
        async for piece in pieces:
            for opening in () if begun else writer.openings():
                yield opening
            begun = True
            chunk = await aside(len(piece.places) * PLACE, partial(writer.chunk, piece))
            if chunk:
                yield chunk
    if closing := writer.closing():
        yield closing
