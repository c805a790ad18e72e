"""Bodies as a client would write them, read by a door of the tiny model."""

from collections.abc import Mapping

import msgspec

from api.asking import Asker
from api.bodies import read_chat, read_completion
from api.calls import Asked
from api.served import ReadLeg, Served, no_legs
from tests.fakes.text import byte_level, served

HI = [{"role": "user", "content": "hi"}]
Fields = Mapping[str, object]


async def complete(
    fields: Fields | None = None,
    *,
    context: int | None = 200,
    legs: ReadLeg = no_legs,
    door: Served | None = None,
) -> Asked:
    """A completion of "the cat", unless the fields say otherwise."""
    body = msgspec.json.encode({"prompt": "the cat", **(fields or {})})
    asker = Asker(door or served(context=context), legs)
    return await asker.completion(read_completion(body), "outer")


async def chat(
    fields: Fields | None = None,
    *,
    context: int | None = 200,
    legs: ReadLeg = no_legs,
    door: Served | None = None,
) -> Asked:
    """A chat that begins with "hi", unless the fields say otherwise."""
    body = msgspec.json.encode({"messages": HI, **(fields or {})})
    asker = Asker(door or served(context=context), legs)
    return await asker.chat(read_chat(body), "outer", len(body))


def texts(asked: Asked) -> list[str]:
    """The prompts, as they read."""
    return [byte_level().decode(call.request.prompt) for call in asked.calls]
