"""One end of a socket pair between two ranks, which carries whole frames in order."""

import socket
from dataclasses import dataclass

LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class Channel:
    """A stream socket. It may have a timeout, so that a peer that does not read is an error."""

    socket: socket.socket

    def send(self, frame: bytes) -> None:
        """Send a whole frame; raises OSError if the other end is gone or does not read."""
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
