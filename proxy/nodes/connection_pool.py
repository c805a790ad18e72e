"""The connections to nodes; idle ones are kept for a while."""

import asyncio
import math
import socket
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from weakref import WeakSet

from discovery.address import parse_address
from proxy.nodes.connection import NodeConnection
from proxy.nodes.connection_errors import ConnectionClosed, HostGone, NoConnection
from proxy.nodes.patience import ReplyTimeouts

KEEPALIVE_S = 4.0  # less than uvicorn's usual 5 s: the server rarely hangs up first
CONNECT_S = 3.0
# the kernel buffers up to 6 MiB for a slow reader, and delivers as much at once
UNREAD_BYTES = 64 << 10
WATCH = {  # a host that vanishes is HostGone about when a lease would end
    "TCP_KEEPIDLE": 2,  # s
    "TCP_KEEPINTVL": 1,  # s
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 5_000,  # ms: for data that is sent but not acknowledged, or has no room
}
NO_ROOM_MS = 30_000  # the last one, for servers that may read nothing for a while
NO_HEADERS: Mapping[str, str] = {}


@dataclass(slots=True)
class ConnectionPool:
    """The connections of this process, by node address."""

    keepalive_s: float = KEEPALIVE_S
    connect_s: float = CONNECT_S
    _idle: dict[str, deque[NodeConnection]] = field(default_factory=dict)
    _all: WeakSet[NodeConnection] = field(default_factory=WeakSet)
    _sweeper: asyncio.TimerHandle | None = None

    async def call(
        self,
        address: str,
        path: str,
        body: bytes,
        patience: ReplyTimeouts,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> NodeConnection:
        """POST JSON, or GET without a body; returns once the reply's head is there.

        The caller closes the result. If an idle connection turns out to be closed, another is
        tried.
        """
        request = encode_request(address, path, body, headers)
        while line := self.take_idle(address):
            try:
                return await self._send(line, request, patience)
            except ConnectionClosed as lost:
                if line.any_received or isinstance(lost, HostGone):
                    raise
        return await self._send(await self.connect(address, patience), request, patience)

    def give_back(self, line: NodeConnection) -> None:
        """Keep a connection for the next call."""
        loop = asyncio.get_running_loop()
        line.free_since = loop.time()
        self._idle.setdefault(line.address, deque()).append(line)
        if self._sweeper is None:
            self._sweeper = loop.call_later(self.keepalive_s, self._sweep)

    def connections(self) -> Sequence[NodeConnection]:
        """All open connections, idle or not."""
        return list(self._all)

    def close(self) -> None:
        """Close all connections."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for line in self.connections():
            line.hang_up()
        self._idle.clear()

    async def _send(
        self, line: NodeConnection, request: bytes, patience: ReplyTimeouts
    ) -> NodeConnection:
        try:
            await line.ask(request, patience)
        except BaseException:
            line.close()
            raise
        return line

    def take_idle(self, address: str) -> NodeConnection | None:
        """The idle connection that was used last, if any."""
        idle = self._idle.get(address)
        oldest = asyncio.get_running_loop().time() - self.keepalive_s
        while idle:
            line = idle.pop()
            if not line.lost and line.free_since > oldest:
                return line
            line.hang_up()
        return None

    async def connect(self, address: str, patience: ReplyTimeouts) -> NodeConnection:
        """Open a connection; raises NoConnection."""
        host, port = parse_address(address)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.connect_s):
                transport, line = await loop.create_connection(
                    lambda: NodeConnection(address, self.give_back), host, port
                )
        except TimeoutError as error:
            raise NoConnection(None) from error
        except OSError as error:
            raise NoConnection(error) from error
        self._all.add(line)
        wire: socket.socket = transport.get_extra_info("socket")
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, UNREAD_BYTES)
        _watch(wire, patience)
        return line

    def _sweep(self) -> None:
        """Close idle connections that are too old; the oldest are at the left."""
        loop = asyncio.get_running_loop()
        oldest = loop.time() - self.keepalive_s
        for address, idle in list(self._idle.items()):
            while idle and (idle[0].lost or idle[0].free_since <= oldest):
                idle.popleft().hang_up()
            if not idle:
                del self._idle[address]
        again = bool(self._idle)
        self._sweeper = loop.call_later(self.keepalive_s, self._sweep) if again else None


@asynccontextmanager
async def open_connections() -> AsyncIterator[ConnectionPool]:
    """A pool that is closed with the context."""
    lines = ConnectionPool()
    try:
        yield lines
    finally:
        lines.close()
        await asyncio.sleep(0)  # transports close in the loop's next turn


def _watch(wire: socket.socket, patience: ReplyTimeouts) -> None:
    """Have the kernel check whether the other host is still there, if this platform can."""
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    told = WATCH if patience.head_s < math.inf else WATCH | {"TCP_USER_TIMEOUT": NO_ROOM_MS}
    for name, value in told.items():
        if (option := getattr(socket, name, None)) is not None:
            wire.setsockopt(socket.IPPROTO_TCP, option, value)


def encode_request(address: str, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    """The bytes of an HTTP/1.1 request."""
    lines = [
        f"{'POST' if body else 'GET'} {path} HTTP/1.1",
        f"Host: {address}",
        "Accept-Encoding: identity",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
