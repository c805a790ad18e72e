"""An HTTP server that sends the very bytes a script says, over real sockets."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum, auto

import msgspec

from discovery.address import format_address

CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + CHUNKED
JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + CHUNKED
END = b"0\r\n\r\n"
PATIENCE_S = 10


class Do(Enum):
    """What is not bytes."""

    HANG = auto()  # until the client leaves
    CUT = auto()  # close the connection


Step = bytes | Do | asyncio.Event  # an event is waited for
HANG, CUT = Do.HANG, Do.CUT


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def events(*data: object) -> list[bytes]:
    """One chunk each."""
    return [chunk(b"data: " + msgspec.json.encode(one) + b"\n\n") for one in data]


def answer(status: int, body: object, kind: str = "application/json") -> bytes:
    data = msgspec.json.encode(body)
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


@dataclass
class RawServer:
    """One script per request, in order of arrival."""

    scripts: deque[Iterable[Step]]
    address: str = ""
    heads: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    connections: int = 0
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left.set()
        except asyncio.CancelledError:
            writer.transport.abort()  # no peer may ever take the rest
            raise
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = head.lower().split("\r\n")
        lengths = [int(line[15:]) for line in lines if line.startswith("content-length:")]
        self.heads.append(head)
        self.bodies.append(await reader.readexactly(sum(lengths)))
        self.asked.set()
        for step in self.scripts.popleft():
            if step is CUT:
                return False
            if step is HANG:
                await reader.readexactly(1)
            elif isinstance(step, asyncio.Event):
                await step.wait()
            elif isinstance(step, bytes):
                writer.write(step)
                await writer.drain()
        return True


@asynccontextmanager
async def raw_server(
    *scripts: Iterable[Step], host: str = "127.0.0.1"
) -> AsyncGenerator[RawServer]:
    server = RawServer(deque(scripts))
    listening = await asyncio.start_server(server.serve, host, 0)
    server.address = format_address(host, listening.sockets[0].getsockname()[1])
    try:
        yield server
    finally:
        listening.close()
        await listening.wait_closed()
