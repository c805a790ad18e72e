"""Bodies as a client would write them, read by a door of the tiny model."""

from collections.abc import Mapping

import msgspec

from api.bodies import read_chat, read_completion
from api.request_parser import RequestParser
from api.served import LegReader, ServedModel, read_whole_request
from api.text_requests import TextRequest
from tests.fakes.text import byte_level, served

HI = [{"role": "user", "content": "hi"}]
Fields = Mapping[str, object]


async def complete(
    fields: Fields | None = None,
    *,
    context: int | None = 200,
    legs: LegReader = read_whole_request,
    door: ServedModel | None = None,
) -> TextRequest:
    """A completion of "the cat", unless the fields say otherwise."""
    body = msgspec.json.encode({"prompt": "the cat", **(fields or {})})
    asker = RequestParser(door or served(context=context), legs)
    return await asker.parse_completion(read_completion(body), "outer")


async def chat(
    fields: Fields | None = None,
    *,
    context: int | None = 200,
    legs: LegReader = read_whole_request,
    door: ServedModel | None = None,
) -> TextRequest:
    """A chat that begins with "hi", unless the fields say otherwise."""
    body = msgspec.json.encode({"messages": HI, **(fields or {})})
    asker = RequestParser(door or served(context=context), legs)
    return await asker.parse_chat(read_chat(body), "outer", len(body))


def texts(asked: TextRequest) -> list[str]:
    """The prompts, as they read."""
    return [byte_level().decode(call.request.prompt) for call in asked.calls]
