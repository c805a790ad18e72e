"""Wakes a thread that waits for sockets."""

import contextlib
import socket


class Wakeup:
    """A thread waits for it while another one may ring; neither call blocks.

    Whoever waits may close it at any time: then ringing has no effect.
    """

    def __init__(self) -> None:
        self._ringing, self._waiting = socket.socketpair()
        self._ringing.setblocking(False)
        self._waiting.setblocking(False)

    def fileno(self) -> int:
        """The file descriptor, readable once it was rung."""
        return self._waiting.fileno()

    def ring(self) -> None:
        """Wake the thread; ringing again before it is cleared has no effect."""
        with contextlib.suppress(OSError):  # rung already, or closed
            self._ringing.send(b"r")

    def clear(self) -> None:
        """Reset it."""
        with contextlib.suppress(BlockingIOError):
            self._waiting.recv(64)

    def close(self) -> None:
        """Close both ends; idempotent."""
        self._ringing.close()
        self._waiting.close()
