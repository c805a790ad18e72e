"""Who comes to a port, as long as this process has room for them."""

import errno
import socket

KEEPALIVE = {  # a machine that is gone keeps its connections here for 90 s, not for two hours
    "TCP_KEEPIDLE": 60,  # s
    "TCP_KEEPINTVL": 10,  # s
    "TCP_KEEPCNT": 3,
}
NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class OutOfResources(Exception):
    """Whoever comes has to wait, and stays in line: a port that is watched tells of them at
    once again and again.
    """


def accept(listener: socket.socket) -> socket.socket | None:
    """The next in line, not blocking; None: nobody, or one that is gone already.

    Raises OutOfResources where there is no file descriptor to be had, or no memory.
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
    """Small messages at once, and signs of life from who says nothing for long."""
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:  # not every platform has it
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
