"""What the kernel knows of the host at the other end of a connection."""

import socket
import struct

INFO = struct.Struct(
    "24x I 28x I"
)  # of Linux's tcp_info: packets on their way, ms since an ACK
MS = 1e-3


def unheard_s(wire: socket.socket) -> float:
    """For how long it has acknowledged nothing while packets are on their way to it.

    0 where none are, and where the kernel does not tell. Linux only: who reads nothing, or is
    stopped, has a host that acknowledges, so this is about hosts and the way to them, unlike
    TCP_USER_TIMEOUT.
    """
    option = getattr(socket, "TCP_INFO", None)
    if option is None or wire.family not in (socket.AF_INET, socket.AF_INET6):
        return 0.0
    try:
        told = wire.getsockopt(socket.IPPROTO_TCP, option, INFO.size)
    except OSError:
        return 0.0  # it is closed
    if len(told) < INFO.size:
        return 0.0
    unacknowledged, since_ms = INFO.unpack(told)
    return since_ms * MS if unacknowledged else 0.0
