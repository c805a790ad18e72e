"""Accepts connections on a listening port while this process has resources for them."""

import errno
import socket
from collections import Counter
from dataclasses import dataclass, field

MOST_FROM_ONE_ADDRESS = 256  # a node needs one for each port of another; a host has several

KEEPALIVE = {  # the connections of a machine that is gone end after 90 s, not two hours
    "TCP_KEEPIDLE": 60,  # s
    "TCP_KEEPINTVL": 10,  # s
    "TCP_KEEPCNT": 3,
}
NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class OutOfResources(Exception):
    """The connection cannot be accepted now and stays in the backlog.

    A poller reports the listener as readable again at once, until there are resources.
    """


def accept(listener: socket.socket) -> socket.socket | None:
    """Accept the next connection without blocking; None if there is none, or it is gone
    already.

    Raises OutOfResources if no file descriptor or no memory is available.
    """
    try:
        connection, _ = listener.accept()
        prepare(connection)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise OutOfResources from error
        return None
    return connection


def prepare(connection: socket.socket) -> None:
    """Make the socket non-blocking, send small messages at once, and enable keepalive."""
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:  # not every platform has it
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


@dataclass(slots=True)
class AddressCounts:
    """How many admitted connections there are from each address, at most `most`.

    So a host that opens more and more takes file descriptors from itself, and not from others.
    """

    most: int = MOST_FROM_ONE_ADDRESS
    _counts: Counter[str] = field(default_factory=Counter)

    def add(self, address: str) -> bool:
        """Count one more; False if there is no room for it."""
        if self._counts[address] >= self.most:
            return False
        self._counts[address] += 1
        return True

    def remove(self, address: str) -> bool:
        """Count one less; whether it was the last."""
        self._counts[address] -= 1
        if is_last := not self._counts[address]:
            del self._counts[address]
        return is_last

    def __len__(self) -> int:
        return len(self._counts)
