"""Whole messages over a TCP connection: each is preceded by its length in four bytes."""

import socket
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

LENGTH_BYTES = 4
LARGEST_FRAME = 16 << 20
MOST_UNSENT = 16 << 20
AT_ONCE = 256 << 10
MOST_AT_ONCE = 16  # reads, so that a peer that never stops sending cannot occupy a turn


class BadFrames(ConnectionError):
    """The bytes are not in our format, or more than any peer would send."""


def framed(message: bytes) -> bytes:
    """The message as it is sent over the connection."""
    return len(message).to_bytes(LENGTH_BYTES, "big") + message


@dataclass(slots=True)
class SendBuffer:
    """Messages to send; one that was cut off is sent again from its beginning."""

    _frames: deque[bytes] = field(default_factory=deque)
    _sent: int = 0  # bytes of the first
    _size: int = 0

    def __bool__(self) -> bool:
        return bool(self._frames)

    def add(self, frame: bytes) -> None:
        """Append a message; raises BadFrames if too much is already waiting."""
        self._size += len(frame)
        if self._size > MOST_UNSENT:
            raise BadFrames(f"more than {MOST_UNSENT} bytes wait to be sent")
        self._frames.append(frame)

    def send(self, connection: socket.socket) -> None:
        """Send as much as the connection takes; raises OSError."""
        while self._frames:
            first = self._frames[0]
            try:
                self._sent += connection.send(memoryview(first)[self._sent :])
            except BlockingIOError:
                return
            if self._sent < len(first):
                return
            self.rewind()
            self._size -= len(first)
            self._frames.popleft()

    def rewind(self) -> None:
        """Start the first message again, on a new connection."""
        self._sent = 0


@dataclass(slots=True)
class ReceiveBuffer:
    """Received bytes up to the first incomplete message; messages are limited to `largest`."""

    largest: int = LARGEST_FRAME
    _bytes: bytearray = field(default_factory=bytearray)

    def receive(self, connection: socket.socket) -> Iterator[bytes]:
        """Every complete message; raises ConnectionError at the stream's end.

        Raises BadFrames for a message that is too long, without waiting for its bytes.
        """
        for _ in range(MOST_AT_ONCE):
            try:
                data = connection.recv(AT_ONCE)
            except BlockingIOError:
                return
            if not data:
                raise ConnectionResetError("the connection was closed")
            self._bytes += data
            yield from self._complete()
            if len(data) < AT_ONCE:
                return

    def _complete(self) -> Iterator[bytes]:
        start, end = 0, len(self._bytes)
        try:
            while end - start >= LENGTH_BYTES:
                size = int.from_bytes(self._bytes[start : start + LENGTH_BYTES], "big")
                if size > self.largest:
                    raise BadFrames(f"a message of {size} bytes")
                if end - start < LENGTH_BYTES + size:
                    break
                start += LENGTH_BYTES
                message = bytes(self._bytes[start : start + size])
                start += size
                yield message
        finally:
            del self._bytes[:start]
