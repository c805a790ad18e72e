"""An ASGI extension: writes body chunks and reports a disconnect without coroutines or tasks.

https://asgi.readthedocs.io/en/latest/extensions.html
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

EXTENSION = "pdserve.outlet"


class NotifyingEvent(asyncio.Event):
    """The event that uvicorn sets on a message or a disconnect; it calls `on_set` as well."""

    on_set: Callable[[], None] | None = None

    def set(self) -> None:
        """See asyncio.Event."""
        super().set()
        if self.on_set is not None:
            self.on_set()


@dataclass(frozen=True, slots=True)
class CycleOutlet:
    """The Outlet of one request of uvicorn's; the end of the body goes through ASGI."""

    cycle: RequestResponseCycle
    happened: NotifyingEvent

    @classmethod
    def of(cls, cycle: RequestResponseCycle) -> Self:
        """Must be created before the application waits for messages of the request."""
        cycle.message_event = happened = NotifyingEvent()
        return cls(cycle, happened)

    def watch_disconnect(self, on_disconnect: Callable[[], None] | None) -> None:
        """Call `on_disconnect` when the client has left; None: stop watching."""
        happened, cycle = self.happened, self.cycle
        happened.on_set = None
        if on_disconnect is None:
            return

        def check() -> None:
            if cycle.disconnected:
                happened.on_set = None
                on_disconnect()

        happened.on_set = check
        cycle.flow.resume_reading()  # reading may be paused after a large body
        check()

    def ready(self) -> bool:
        """Whether a chunked body has started and its client is connected and reads."""
        cycle = self.cycle
        begun = cycle.response_started and bool(cycle.chunked_encoding)
        over = cycle.response_complete or cycle.disconnected
        return begun and not over and not cycle.flow.write_paused

    def write(self, body: bytes) -> None:
        """Write one chunk, which must not be empty: that would be the end."""
        self.cycle.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
