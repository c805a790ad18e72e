"""A side channel's reception, turned by hand, and whoever comes there."""

import socket
from collections.abc import Callable

from kv_transfer.ledger.known_sinks import Peer
from kv_transfer.side_channel.frames import BadFrames
from kv_transfer.side_channel.server import SideChannelServer

HERE, PATIENCE_S = "127.0.0.1", 10.0
Said = tuple[Peer, bytes | BadFrames]


def heard(reception: SideChannelServer, count: int, *, now: float = 0.0) -> list[Said]:
    """So many messages."""
    said = list[Said]()
    while len(said) < count:
        reception.waiting.wait({}, PATIENCE_S)
        said += reception.receive(reception.waiting.ready_now(), now)
    return said


def until(
    reception: SideChannelServer, true: Callable[[], bool], *, now: float = 0.0
) -> list[Said]:
    """What was said until then."""
    said = list[Said]()
    while not true():
        reception.waiting.wait({}, PATIENCE_S)
        said += reception.receive(reception.waiting.ready_now(), now)
    return said


def raw(reception: SideChannelServer, data: bytes = b"") -> socket.socket:
    """A connection, and the bytes that it begins with."""
    connection = socket.create_connection((HERE, reception.port), PATIENCE_S)
    connection.sendall(data)
    return connection


def is_over(connection: socket.socket) -> bool:
    """Whether it was hung up; waits for that."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
