"""How a worker process joins the hub: it sends its id, and gets settings and a socket.

The hub listens in the abstract namespace of Unix sockets, which leaves no file behind, and
admits processes of its own user only (SO_PEERCRED). A worker sends its id; the hub answers
with the settings and, by SCM_RIGHTS, the listening socket that all workers accept clients from.
"""

import asyncio
import os
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4

HELLO = struct.Struct("!I")  # the worker's id
LENGTH = struct.Struct("!I")  # of the settings, in bytes
PEER_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
BACKLOG = 64
HELLO_S = 5.0
CHUNK_BYTES = 64 << 10


@dataclass(slots=True)
class HubListener:
    """Owns the socket that workers connect to; passes a copy of `client_socket` to each."""

    name: str
    listening: socket.socket
    client_socket: socket.socket
    settings: bytes

    @classmethod
    def open(cls, client_socket: socket.socket, settings: bytes) -> "HubListener":
        """Listen at a fresh name."""
        name, listening = f"pdserve-proxy-{uuid4().hex}", socket.socket(socket.AF_UNIX)
        listening.bind(f"\0{name}")
        listening.listen(BACKLOG)
        listening.setblocking(False)
        return cls(name, listening, client_socket, settings)

    async def accept_workers(self) -> AsyncGenerator[tuple[int, socket.socket]]:
        """The id and the connection of each worker; the caller owns the connection."""
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(self.listening)
            worker = None
            with suppress(OSError, TimeoutError, struct.error):
                worker = await self._admit(connection)
            if worker is None:
                connection.close()
            else:
                yield worker, connection

    def close(self) -> None:
        """Stop listening: no more workers can join."""
        self.listening.close()

    async def _admit(self, connection: socket.socket) -> int | None:
        """The worker's id; None for another user's process, which is sent nothing."""
        peer = connection.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, PEER_CREDENTIALS.size
        )
        if PEER_CREDENTIALS.unpack(peer)[1] != os.getuid():
            return None
        connection.setblocking(False)
        async with asyncio.timeout(HELLO_S):
            loop = asyncio.get_running_loop()
            hello = await loop.sock_recv(connection, HELLO.size)
            worker: int = HELLO.unpack(hello)[0]
            head = LENGTH.pack(len(self.settings))
            socket.send_fds(connection, [head], [self.client_socket.fileno()])
            await loop.sock_sendall(connection, self.settings)
        return worker


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What a worker got on joining; it owns both sockets."""

    settings: bytes
    client_socket: socket.socket
    connection: socket.socket


def join_hub(name: str, worker: int) -> WorkerSetup:
    """Called in a worker, before it has an event loop; raises OSError without a hub."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(HELLO_S)
    connection.connect(f"\0{name}")
    connection.sendall(HELLO.pack(worker))
    head, fds, _, _ = socket.recv_fds(connection, LENGTH.size, 1)
    if len(head) != LENGTH.size or not fds:
        raise ConnectionError("the hub let nobody in")
    settings = b""
    (length,) = LENGTH.unpack(head)
    while len(settings) < length:
        chunk = connection.recv(min(CHUNK_BYTES, length - len(settings)))
        if not chunk:
            raise ConnectionError("the hub broke off")
        settings += chunk
    connection.setblocking(False)
    client_socket = socket.socket(fileno=fds[0])
    client_socket.setblocking(False)
    return WorkerSetup(settings, client_socket, connection)
