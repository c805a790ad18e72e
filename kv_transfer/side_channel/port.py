"""The side channel's port: taken before a node has anything to offer there."""

import socket


def open_port(host: str, number: int) -> socket.socket:
    """Listen, so that nobody else does; 0 lets the system pick. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, number), family=family, backlog=1024)
    listener.setblocking(False)
    return listener


def close_backlog(listener: socket.socket) -> None:
    """Whoever came while nobody was there to hear it: it comes again if it still wants to.

    What it said may be too old by now to prove who it is.
    """
    while True:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError:
            continue  # that one is gone already
        connection.close()
