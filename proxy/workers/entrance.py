"""How a worker comes in: it is asked for nothing but its number, and gets all that it needs.

The hub listens at a name in the abstract namespace of Unix sockets, of which no file is left
however it ends, and lets in processes of its own user only (SO_PEERCRED). A worker says its
number; it gets the settings, and the socket that all workers accept clients from (SCM_RIGHTS).
"""

import asyncio
import os
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4

HELLO = struct.Struct("!I")
LENGTH = struct.Struct("!I")
PEER = struct.Struct("3i")  # pid, uid, gid
BACKLOG = 64
HELLO_S = 5.0
PIECE = 64 << 10


@dataclass(slots=True)
class Entrance:
    """Owns the socket it listens on, and lends `door` to all who come in."""

    name: str
    listening: socket.socket
    door: socket.socket
    settings: bytes

    @classmethod
    def open(cls, door: socket.socket, settings: bytes) -> "Entrance":
        """At a name that nobody has."""
        name, listening = f"pdserve-proxy-{uuid4().hex}", socket.socket(socket.AF_UNIX)
        listening.bind(f"\0{name}")
        listening.listen(BACKLOG)
        listening.setblocking(False)
        return cls(name, listening, door, settings)

    async def comers(self) -> AsyncGenerator[tuple[int, socket.socket]]:
        """The number and the connection of each worker, which the caller owns from then on."""
        loop = asyncio.get_running_loop()
        while True:
            comer, _ = await loop.sock_accept(self.listening)
            worker = None
            with suppress(OSError, TimeoutError, struct.error):
                worker = await self._let_in(comer)
            if worker is None:
                comer.close()
            else:
                yield worker, comer

    def close(self) -> None:
        """Nobody comes in any more."""
        self.listening.close()

    async def _let_in(self, comer: socket.socket) -> int | None:
        """Its number; None: another user's process, which gets nothing."""
        said = comer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
        if PEER.unpack(said)[1] != os.getuid():
            return None
        comer.setblocking(False)
        async with asyncio.timeout(HELLO_S):
            loop = asyncio.get_running_loop()
            worker: int = HELLO.unpack(await loop.sock_recv(comer, HELLO.size))[0]
            head = LENGTH.pack(len(self.settings))
            socket.send_fds(comer, [head], [self.door.fileno()])
            await loop.sock_sendall(comer, self.settings)
        return worker


@dataclass(frozen=True, slots=True)
class Welcome:
    """What a worker got; both sockets are its own."""

    settings: bytes
    door: socket.socket
    connection: socket.socket


def come_in(name: str, worker: int) -> Welcome:
    """As a worker, before there is an event loop; raises OSError where there is no hub."""
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
        piece = connection.recv(min(PIECE, length - len(settings)))
        if not piece:
            raise ConnectionError("the hub broke off")
        settings += piece
    connection.setblocking(False)
    door = socket.socket(fileno=fds[0])
    door.setblocking(False)
    return Welcome(settings, door, connection)
