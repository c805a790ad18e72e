"""How an ASGI app ends with its process: what is cut then needs no traceback in a log."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]
"""What ASGI's messages are is between the server and the app."""


@dataclass(frozen=True, slots=True)
class EndsQuietly:
    """Another app, whose requests may be cancelled: its server does that only when it ends.

    The server says in one line that an answer is not whole, and closes the connection. What
    the app has to say to it after that goes nowhere: it has tasks of its own for a request.
    """

    app: App

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:  # noqa: ANN401
        """One request, or the app's whole life."""
        over = False

        async def send_while_open(message: Any) -> None:  # noqa: ANN401
            if not over:
                await send(message)

        try:
            await self.app(scope, receive, send_while_open)
        except asyncio.CancelledError:
            over = True
            if scope["type"] == "lifespan":
                raise
