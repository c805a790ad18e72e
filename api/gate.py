"""Admission: the protocol by which a parsed text request waits for its turn to be generated."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from api.generator import StreamFailed
from engine.request import ModelKey

GATEWAY_TIMEOUT = 504
OF_REQUEST = "the timeout that the request has set (timeout or X-Request-Timeout)"
OF_SERVER = "this server's limit for requests that set no timeout (--request-timeout-s)"
Item = TypeVar("Item")


class DeadlineExceeded(StreamFailed):
    """The request's deadline passed while it was being answered."""

    status = GATEWAY_TIMEOUT


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a request's time is over, in seconds of the event loop's clock, and how long it was.

    `own`: the request set that time itself; otherwise it is the server's limit.
    """

    at: float
    timeout_s: float
    own: bool = True

    @property
    def allowed(self) -> str:
        """The time that the request has, and where that was set, for error messages."""
        return f"{self.timeout_s:g} s, {OF_REQUEST if self.own else OF_SERVER}"

    def exceeded(self) -> DeadlineExceeded:
        """The error of a request that was not answered by then."""
        return DeadlineExceeded(f"Timed out: the answer was not complete within {self.allowed}")


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """What admission control knows of a request: its size in tokens, priority and deadline.

    `max_tokens` is the limit of all its choices together. Smaller priorities are more urgent.
    `model` names the model whose nodes have to serve it; None: the only one.
    """

    prompt_tokens: int
    max_tokens: int
    choices: int = 1
    priority: int = 0
    timeout_s: float | None = None
    model: ModelKey | None = None


class AdmittedRequest(Protocol):
    """A request that was admitted and is being answered."""

    @property
    def deadline(self) -> Deadline | None:
        """The request's deadline; None: none."""

    def record_tokens(self, tokens: int, choice: int = 0) -> None:
        """Count tokens that were generated for one of its choices."""


class AdmissionControl(Protocol):
    """Admits requests, at once or when it is their turn."""

    def enter(self, visit: AdmissionRequest) -> AbstractAsyncContextManager[AdmittedRequest]:
        """Wait until the request is admitted; leaving the context makes room for others.

        Raises StreamFailed if it is refused or waits too long.
        """


@dataclass(frozen=True, slots=True)
class UncountedRequest:
    """An admitted request whose tokens are not counted."""

    deadline: Deadline | None = None

    def record_tokens(self, tokens: int, choice: int = 0) -> None:
        """See AdmittedRequest."""


class AdmitAll:
    """Admits every request at once; only deadlines are enforced."""

    @asynccontextmanager
    async def enter(self, visit: AdmissionRequest) -> AsyncGenerator[AdmittedRequest]:
        """See AdmissionControl."""
        now, wanted = asyncio.get_running_loop().time(), visit.timeout_s
        yield UncountedRequest(None if wanted is None else Deadline(now + wanted, wanted))


ADMIT_ALL = AdmitAll()


async def with_deadline(
    deadline: Deadline, stream: AsyncGenerator[Item]
) -> AsyncGenerator[Item]:
    """The items until the deadline; raises DeadlineExceeded, and always closes the stream."""
    async with aclosing(stream):
        while True:
            try:
                async with asyncio.timeout_at(deadline.at):
                    item = await anext(stream)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise deadline.exceeded() from None
            yield item
