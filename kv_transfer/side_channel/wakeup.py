"""What wakes a thread that waits at sockets."""

import contextlib
import socket


class Wakeup:
    """What a thread waits at while another may ring; neither call ever waits."""

    def __init__(self) -> None:
        self._ringing, self._waiting = socket.socketpair()
        self._ringing.setblocking(False)
        self._waiting.setblocking(False)

    def fileno(self) -> int:
        """Readable once it has rung."""
        return self._waiting.fileno()

    def ring(self) -> None:
        """One more time than nobody has heard makes no difference."""
        with contextlib.suppress(BlockingIOError):
            self._ringing.send(b"r")

    def clear(self) -> None:
        """It was heard."""
        with contextlib.suppress(BlockingIOError):
            self._waiting.recv(64)

    def close(self) -> None:
        """Both ends; idempotent."""
        self._ringing.close()
        self._waiting.close()
