"""The side channel's port, which is opened before a node has anything to offer there."""

import socket


def open_port(host: str, number: int) -> socket.socket:
    """Listen, so that the port is ours; 0 lets the system pick. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, number), family=family, backlog=1024)
    listener.setblocking(False)
    return listener


def close_backlog(listener: socket.socket) -> None:
    """Close connections that came before anything listened to them; peers connect again.

    What they sent may be too old by now to prove who they are.
    """
    while True:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError:
            continue  # that connection is already gone
        connection.close()
