"""Reads from the kernel whether the host at the other end of a connection is still there."""

import socket
import struct

# Of Linux's tcp_info: probes without an answer, packets without an ACK, ms since the last one.
INFO = struct.Struct("3x B 20x I 28x I")
UNANSWERED = 2  # one may be on its way, long after the last
MS = 1e-3


def unacknowledged_s(wire: socket.socket) -> float:
    """Seconds since the host's last ACK, while packets to it are outstanding.

    0 if none are outstanding, or if the kernel cannot tell (not Linux). The host of a client
    process that is stopped or reads nothing still acknowledges packets and answers window
    probes, so this finds only dead hosts and links, unlike TCP_USER_TIMEOUT.
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
    probes, packets, since_ms = INFO.unpack(told)
    return since_ms * MS if packets or probes >= UNANSWERED else 0.0
