"""A server's protocol that writes what belongs together at once.

A server writes a response's head, each piece of its body and its end one by one, and each is
a call of the kernel and a packet. The head can wait for the first piece, and the last piece,
which is known by its `[DONE]`, for the end: both follow in the same turn of the loop. If not,
a callback lets go of what was kept.
"""

import asyncio
from typing import Any

from api.door.protocol import CarefulProtocol
from proxy.serving.outlet import EXTENSION, CycleOutlet

HEAD = b"HTTP/1.1 "
LAST = b"data: [DONE]\n\n\r\n"


class Corked:
    """A transport around another; keeps what begins or ends a response for one turn at most."""

    __slots__ = ("_inner", "_kept", "_loop")

    def __init__(self, inner: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._inner, self._loop, self._kept = inner, loop, b""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  whatever a transport has
        return getattr(self._inner, name)

    def write(self, data: bytes) -> None:
        """As of any transport."""
        waiting = self._kept
        data = waiting + data
        if data.endswith(LAST) or (not waiting and data.startswith(HEAD)):
            self._kept = data
            if not waiting:
                self._loop.call_soon(self._let_go)
        else:
            self._kept = b""
            self._inner.write(data)

    def close(self) -> None:
        """As of any transport: what was written before is sent."""
        self._let_go()
        self._inner.close()

    def write_eof(self) -> None:
        """As of any transport: behind what was written before."""
        self._let_go()
        self._inner.write_eof()

    def _let_go(self) -> None:
        if self._kept:
            data, self._kept = self._kept, b""
            self._inner.write(data)


class CorkedProtocol(CarefulProtocol):
    """The careful one, over such a transport; its requests have an outlet each."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio.Protocol."""
        corked: Any = Corked(transport, self.loop)
        super().connection_made(corked)

    def on_headers_complete(self) -> None:
        """See httptools: work on a request begins, in the loop's next turn."""
        super().on_headers_complete()
        extensions: Any = {EXTENSION: CycleOutlet.of(self.cycle)}
        self.scope["extensions"] = extensions
