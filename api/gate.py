"""What stands between a request that was understood and the work on it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from api.generator import StreamFailed
from engine.request import Model

GATEWAY_TIMEOUT = 504
TOO_LONG = "its time was over before the answer was"
Item = TypeVar("Item")


class TimeIsOver(StreamFailed):
    """The request was at work when its deadline passed."""

    status = GATEWAY_TIMEOUT


@dataclass(frozen=True, slots=True)
class Visit:
    """What a request is to whoever has to share out time and room.

    `most_tokens` may come as answers of all its choices. Smaller priorities are more urgent.
    `model`: only its nodes can do it.
    """

    prompt_tokens: int
    most_tokens: int
    choices: int = 1
    priority: int = 0
    timeout_s: float | None = None
    model: Model | None = None


class Pass(Protocol):
    """A request that was let in."""

    @property
    def deadline(self) -> float | None:
        """When it has to be over, by the clock of the running loop; None: whenever it is."""

    def came(self, tokens: int, choice: int = 0) -> None:
        """So many more tokens of one of its choices have come."""


class Gate(Protocol):
    """Lets requests in, at once or in their turn."""

    def enter(self, visit: Visit) -> AbstractAsyncContextManager[Pass]:
        """Waits where it must; raises StreamFailed. Leaving it makes room for others."""


@dataclass(frozen=True, slots=True)
class OpenPass:
    """Nobody counts what comes."""

    deadline: float | None = None

    def came(self, tokens: int, choice: int = 0) -> None:
        """See Pass."""


class OpenGate:
    """Lets everybody in at once; only deadlines are kept."""

    @asynccontextmanager
    async def enter(self, visit: Visit) -> AsyncGenerator[Pass]:
        """See Gate."""
        now = asyncio.get_running_loop().time()
        yield OpenPass(None if visit.timeout_s is None else now + visit.timeout_s)


OPEN = OpenGate()


async def until(deadline: float | None, stream: AsyncGenerator[Item]) -> AsyncGenerator[Item]:
    """All items that come in time; raises TimeIsOver, and closes the stream in any case."""
    async with aclosing(stream):
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    item = await anext(stream)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise TimeIsOver(TOO_LONG) from None
            yield item
