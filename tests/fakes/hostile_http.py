"""Clients that mean no good, over plain sockets."""

import asyncio
import re
import socket
from dataclasses import dataclass

LINE = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
SMALL_WINDOW = 4096


@dataclass
class Raw:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, *data: bytes) -> None:
        """As much of it as the other side takes: being cut is no error here."""
        try:
            for part in data:
                self.writer.write(part)
                await self.writer.drain()
        except ConnectionError:
            pass

    async def answer(self) -> int:
        """One answer, read to its end."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        assert length
        await self.reader.readexactly(int(length[1]))
        return int(head.split(b" ", 2)[1])

    async def rest(self) -> bytes:
        """All that is said until the other side closes or cuts."""
        said = b""
        try:
            while part := await self.reader.read(65536):
                said += part
        except ConnectionError:
            pass
        return said

    async def status(self) -> int | None:
        """Of the first answer; None: the connection ended without one."""
        said = await self.rest()
        return int(said.split(b" ", 2)[1]) if said else None

    def close(self) -> None:
        self.writer.transport.abort()


async def connect(address: str) -> Raw:
    host, _, port = address.rpartition(":")
    return Raw(*await asyncio.open_connection(host, int(port)))


async def stuck(address: str, request: bytes) -> socket.socket:
    """A client that asks, and then takes nothing: its window is small, and soon full."""
    host, _, port = address.rpartition(":")
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_WINDOW)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, (host, int(port)))
    await loop.sock_sendall(client, request)
    return client


def head(*lines: bytes) -> bytes:
    return LINE + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def post(body: bytes, *lines: bytes) -> bytes:
    return head(f"Content-Length: {len(body)}".encode(), *lines) + body


def last(request: bytes) -> bytes:
    """The same, and the connection is to be closed behind it."""
    return request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
