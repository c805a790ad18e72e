"""A request's connection as its application sees it, without coroutines and tasks: what is sent
of the body, and whether the client is there.

Offered to applications as an extension of ASGI:
https://asgi.readthedocs.io/en/latest/extensions.html
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

EXTENSION = "pdserve.outlet"


class Telling(asyncio.Event):
    """What uvicorn sets when something has happened to a request; calls `told` as well."""

    told: Callable[[], None] | None = None

    def set(self) -> None:
        """See asyncio.Event."""
        super().set()
        if self.told is not None:
            self.told()


@dataclass(frozen=True, slots=True)
class CycleOutlet:
    """Of one request that uvicorn answers; see Outlet. Its end is sent as always."""

    cycle: RequestResponseCycle
    happened: Telling

    @classmethod
    def of(cls, cycle: RequestResponseCycle) -> Self:
        """Before anybody waits for what happens to it."""
        cycle.message_event = happened = Telling()
        return cls(cycle, happened)

    def watch(self, left: Callable[[], None] | None) -> None:
        """`left` is called once the client has left, from now on; None: nobody is."""
        happened, cycle = self.happened, self.cycle
        happened.told = None
        if left is None:
            return

        def told() -> None:
            if cycle.disconnected:
                happened.told = None
                left()

        happened.told = told
        cycle.flow.resume_reading()  # it may stand still behind a large body
        told()

    def ready(self) -> bool:
        """A body in chunks has begun, and its client is there and takes what it is sent."""
        cycle = self.cycle
        begun = cycle.response_started and bool(cycle.chunked_encoding)
        over = cycle.response_complete or cycle.disconnected
        return begun and not over and not cycle.flow.write_paused

    def write(self, body: bytes) -> None:
        """One chunk, which must not be empty: that would be the end."""
        self.cycle.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
