"""Limits on client connections: time, bytes and number; closes those that exceed them. Pure.

A connection has three deadlines: to send a request's head, to send its body, and to read what
was written to it. Each has a table ordered by time, so that a sweep costs nothing while none
is late, and no request needs a timer. Client hosts that died without closing the connection
are looked for now and then: a server that only writes would notice after a quarter of an hour.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

LOOK_S = 0.5
HOSTS_S = 2.0  # from one look at the hosts of all connections to the next
LARGEST_BODY = 16 << 20
PROGRESS_BYTES = 4096


class ConnectionFault(Enum):
    """Why a connection is refused or closed: the metric's reason, HTTP status and message.

    Without a status the connection is closed without a response. The message of an unknown
    method has a place for its name.
    """

    IDLE = "idle", None, ""
    CROWDED = "crowded", None, ""
    SLOW_CLIENT = "slow_client", None, ""
    GONE = "gone", None, ""
    MALFORMED = "malformed", 400, "this is no HTTP/1.1 request"
    UNKNOWN_METHOD = "unknown_method", 501, "{} is no method of HTTP that this server knows"
    PIPELINED = "pipelined", 400, "too many requests were sent before their answers came"
    SLOW_HEAD = "slow_head", 408, "the head of the request took too long"
    SLOW_BODY = "slow_body", 408, "the body of the request took too long"
    LARGE_BODY = "large_body", 413, "the body is too large"
    LARGE_HEAD = "large_head", 431, "the head of the request is too large"
    FULL = "full", 503, "too many bodies are on their way"

    def __init__(self, reason: str, status: int | None, message: str) -> None:
        self.reason, self.status, self.message = reason, status, message


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorLimits:
    """Seconds, bytes and numbers; those of bytes are of one request, but for `all_bodies`."""

    head_s: float = 10.0
    body_s: float = 60.0
    write_s: float = 60.0
    gone_s: float = 60.0
    head_bytes: int = 64 << 10
    headers: int = 128
    body_bytes: int = LARGEST_BODY
    body_pieces: int = 1 << 16
    all_bodies: int = 256 << 20
    pipelined: int = 16
    connections: int | None = None


class LimitedConnection(Protocol):
    """What the limiter needs of a connection."""

    def end(self, fault: ConnectionFault) -> None:
        """Refuse its request or close it."""

    def unsent(self) -> int:
        """Bytes written that the client has not read yet."""

    def unacknowledged_s(self) -> float:
        """Seconds since its host last acknowledged packets; 0 if none are outstanding."""

    @property
    def closing(self) -> bool:
        """Whether it closes as soon as the client has read what was written."""

    @property
    def idle(self) -> ConnectionFault | None:
        """The fault if no head comes in time; None: its request is being answered."""


@dataclass(slots=True, eq=False)
class ConnectionLimiter:
    """Tracks all connections of one server, and ends those that are late."""

    limits: DoorLimits = field(default_factory=DoorLimits)
    refused: Counter[str] = field(default_factory=Counter)
    connections: dict[LimitedConnection, None] = field(default_factory=dict)
    heads: dict[LimitedConnection, float] = field(default_factory=dict)
    bodies: dict[LimitedConnection, float] = field(default_factory=dict)
    writes: dict[LimitedConnection, tuple[float, int]] = field(default_factory=dict)
    held_bytes: int = 0
    """Bytes of request bodies that are not answered yet."""
    looked: float = 0.0
    """When the hosts of all connections were last checked."""

    def add(self, connection: LimitedConnection, now: float) -> None:
        """Track a new connection; if there are too many, close the one idle the longest."""
        self.connections[connection] = None
        self.heads[connection] = now
        most = self.limits.connections
        if most is not None and len(self.connections) > most:
            oldest = next(iter(self.heads))
            del self.heads[oldest]  # it is removed later: until then others may come
            oldest.end(ConnectionFault.CROWDED)

    def remove(self, connection: LimitedConnection) -> None:
        """Forget a closed connection."""
        self.connections.pop(connection, None)
        self.stop_waiting(connection)
        self.writes.pop(connection, None)

    def stop_waiting(self, connection: LimitedConnection) -> None:
        """No longer wait for a head or body from it."""
        self.heads.pop(connection, None)
        self.bodies.pop(connection, None)

    def await_drain(self, connection: LimitedConnection, now: float) -> None:
        """Wait for the client to read what was written."""
        self.writes.setdefault(connection, (now, connection.unsent()))

    def sweep(self, now: float) -> None:
        """End the connections that are late."""
        while late := _first_late(self.heads, now - self.limits.head_s):
            del self.heads[late]
            if fault := late.idle:
                late.end(fault)
        while late := _first_late(self.bodies, now - self.limits.body_s):
            del self.bodies[late]
            late.end(ConnectionFault.SLOW_BODY)
        for connection in [one for one in self.connections if one.closing]:
            self.await_drain(connection, now)
        for connection, (since, unsent) in list(self.writes.items()):
            left = connection.unsent()
            if left + PROGRESS_BYTES <= unsent:
                self.writes[connection] = (now, left)
            elif now - since >= self.limits.write_s:
                connection.end(ConnectionFault.SLOW_CLIENT)
        self._end_dead_hosts(now)

    async def run(self) -> None:
        """Sweep at intervals, until cancelled."""
        clock: Callable[[], float] = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(LOOK_S)
            self.sweep(clock())

    def _end_dead_hosts(self, now: float) -> None:
        if now - self.looked < HOSTS_S:
            return
        self.looked = now
        for connection in list(self.connections):
            if connection.unacknowledged_s() >= self.limits.gone_s:
                connection.end(ConnectionFault.GONE)


def _first_late(
    table: dict[LimitedConnection, float], before: float
) -> LimitedConnection | None:
    """The first late connection: tables are ordered by time."""
    for connection, since in table.items():
        return connection if since <= before else None
    return None
