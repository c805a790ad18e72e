"""One end of a pair of sockets between two ranks: whole frames, one after another."""

import socket
from dataclasses import dataclass

LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class Channel:
    """A stream socket; with a timeout of its own, a peer that does not read ends us."""

    socket: socket.socket

    def send(self, frame: bytes) -> None:
        """Whole; raises OSError where the other end is gone or does not read."""
        self.socket.sendall(len(frame).to_bytes(LENGTH_BYTES, "big") + frame)

    def receive(self) -> bytes | None:
        """The next frame; None once the other end is closed."""
        head = self._exactly(LENGTH_BYTES)
        if head is None:
            return None
        return self._exactly(int.from_bytes(head, "big"))

    def _exactly(self, count: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < count:
            try:
                part = self.socket.recv(count - len(parts))
            except ConnectionResetError:
                return None
            if not part:
                return None
            parts += part
        return bytes(parts)
