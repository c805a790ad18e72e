"""The body of an answer, written without the coroutine that a server has for it.

Offered to applications as an extension of ASGI:
https://asgi.readthedocs.io/en/latest/extensions.html
"""

from dataclasses import dataclass

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

EXTENSION = "pdserve.outlet"


@dataclass(frozen=True, slots=True)
class CycleOutlet:
    """Of one request that uvicorn answers; see Outlet. Its end is sent as always."""

    cycle: RequestResponseCycle

    def ready(self) -> bool:
        """A body in chunks has begun, and its client is there and takes what it is sent."""
        cycle = self.cycle
        begun = cycle.response_started and bool(cycle.chunked_encoding)
        over = cycle.response_complete or cycle.disconnected
        return begun and not over and not cycle.flow.write_paused

    def write(self, body: bytes) -> None:
        """One chunk, which must not be empty: that would be the end."""
        self.cycle.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
