"""Somebody at a node's side channel, who waits for each answer."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kv_transfer.side_channel.frames import LENGTH_BYTES, framed
from kv_transfer.wire import FromSink, FromSource, decode_from_source, encode

SOON_S = 60.0


@dataclass(frozen=True, slots=True)
class Caller:
    """A connection, and plain words through it."""

    connection: socket.socket

    def say(self, message: FromSink) -> None:
        """One message."""
        self.connection.sendall(framed(encode(message)))

    def answer(self) -> FromSource:
        """The next one; raises TimeoutError, and ConnectionError where there will be none."""
        size = int.from_bytes(self._exactly(LENGTH_BYTES), "big")
        return decode_from_source(self._exactly(size))

    def _exactly(self, size: int) -> bytes:
        data = self.connection.recv(size, socket.MSG_WAITALL)
        if len(data) < size:
            raise ConnectionResetError("hung up")
        return data


@contextmanager
def calling(address: tuple[str, int], name: bytes = b"sink") -> Iterator[Caller]:
    """Introduced by this name."""
    with socket.create_connection(address, SOON_S) as connection:
        connection.sendall(framed(name))
        yield Caller(connection)
