"""A request that its server cancels is over, and says nothing of it."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from api.ending import EndsQuietly, Receive, Send

HTTP, LIFESPAN = {"type": "http"}, {"type": "lifespan"}


@dataclass
class Hanging:
    """An app that has one thing to say, and a task that says another later."""

    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    later: asyncio.Task[None] | None = None

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:  # noqa: ANN401
        assert scope["type"] == await receive()
        await send("early")
        self.later = asyncio.create_task(self._speak(send))
        await asyncio.Event().wait()

    async def _speak(self, send: Send) -> None:
        await self.go_on.wait()
        await send("late")


async def heard(scope: dict[str, str]) -> list[str]:
    """All that comes of a request that is cancelled once it has begun."""
    said, app = list[str](), Hanging()

    async def receive() -> str:
        return scope["type"]

    async def send(message: str) -> None:
        said.append(message)

    request = asyncio.ensure_future(EndsQuietly(app)(scope, receive, send))
    while not said:  # noqa: ASYNC110
        await asyncio.sleep(0)
    request.cancel()
    await request
    app.go_on.set()
    assert app.later is not None
    await app.later
    return said


async def test_a_request_that_is_cancelled_just_ends_and_says_no_more() -> None:
    assert await heard(HTTP) == ["early"]


async def test_the_apps_own_life_is_cancelled_as_ever() -> None:
    with pytest.raises(asyncio.CancelledError):
        await heard(LIFESPAN)
