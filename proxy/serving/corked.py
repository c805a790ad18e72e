"""A uvicorn protocol that coalesces writes, as TCP_CORK does.

Uvicorn writes a response's head, each chunk of its body and its end separately, and each is a
system call and a packet. Here the head waits for the first chunk, and the last chunk,
recognised by its `[DONE]`, for the end: both follow in the same iteration of the event loop. If
not, a callback flushes what was held back.
"""

import asyncio
from typing import Any

from api.door.protocol import LimitedProtocol
from proxy.serving.outlet import EXTENSION, CycleOutlet

HEAD = b"HTTP/1.1 "
LAST = b"data: [DONE]\n\n\r\n"


class CorkedTransport:
    """A transport wrapper that holds a head or last chunk for one loop iteration at most."""

    __slots__ = ("_corked", "_inner", "_loop")

    def __init__(self, inner: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._inner, self._loop, self._corked = inner, loop, b""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  whatever a transport has
        return getattr(self._inner, name)

    def write(self, data: bytes) -> None:
        """See asyncio.WriteTransport."""
        waiting = self._corked
        data = waiting + data
        if data.endswith(LAST) or (not waiting and data.startswith(HEAD)):
            self._corked = data
            if not waiting:
                self._loop.call_soon(self._flush)
        else:
            self._corked = b""
            self._inner.write(data)

    def close(self) -> None:
        """See asyncio.Transport; what was written before is sent first."""
        self._flush()
        self._inner.close()

    def write_eof(self) -> None:
        """See asyncio.WriteTransport; what was written before is sent first."""
        self._flush()
        self._inner.write_eof()

    def _flush(self) -> None:
        if self._corked:
            data, self._corked = self._corked, b""
            self._inner.write(data)


class CorkedProtocol(LimitedProtocol):
    """LimitedProtocol over a CorkedTransport; each request gets a CycleOutlet."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio.Protocol."""
        corked: Any = CorkedTransport(transport, self.loop)
        super().connection_made(corked)

    def on_headers_complete(self) -> None:
        """See httptools; the application starts in the next loop iteration."""
        super().on_headers_complete()
        extensions: Any = {EXTENSION: CycleOutlet.of(self.cycle)}
        self.scope["extensions"] = extensions
