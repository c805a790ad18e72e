"""Who may take how long and how much at a door, and who has taken too long. Pure.

A connection is waited for in three ways: for the head of a request, for its body, and to take
what was written to it. Each has a table by time, so that looking for the late ones costs
nothing while there are none, and no request needs a timer. Hosts that are gone without a word
are looked for now and then: a server that only writes would not hear of it for a quarter of an
hour, and answer nobody until then.
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


class Fault(Enum):
    """Why a connection is refused or cut: what a client is told, and what is counted.

    Without a status nothing is said any more.
    """

    IDLE = "idle", None, ""
    CROWDED = "crowded", None, ""
    SLOW_CLIENT = "slow_client", None, ""
    GONE = "gone", None, ""
    MALFORMED = "malformed", 400, "this is no HTTP/1.1 request"
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


class Connection(Protocol):
    """What the keeper knows of one."""

    def end(self, fault: Fault) -> None:
        """Refuse or cut it."""

    def unsent(self) -> int:
        """Bytes that the client has not taken yet."""

    def unheard_s(self) -> float:
        """How long its host has acknowledged nothing, of what it was sent; 0: all is."""

    @property
    def closing(self) -> bool:
        """Whether it only lasts until what was written is taken."""

    @property
    def idle(self) -> Fault | None:
        """What its silence is, where it is waited for a head; None: it was answered since."""


@dataclass(slots=True, eq=False)
class Keeper:
    """The tables of one door, of all its connections."""

    limits: DoorLimits = field(default_factory=DoorLimits)
    refused: Counter[str] = field(default_factory=Counter)
    connections: dict[Connection, None] = field(default_factory=dict)
    heads: dict[Connection, float] = field(default_factory=dict)
    bodies: dict[Connection, float] = field(default_factory=dict)
    writes: dict[Connection, tuple[float, int]] = field(default_factory=dict)
    held_bytes: int = 0
    """Of bodies, as long as they are not answered."""
    looked: float = 0.0
    """When the hosts of all connections were."""

    def enter(self, connection: Connection, now: float) -> None:
        """A new one; of too many, the one that was waited for the longest goes."""
        self.connections[connection] = None
        self.heads[connection] = now
        most = self.limits.connections
        if most is not None and len(self.connections) > most:
            next(iter(self.heads)).end(Fault.CROWDED)

    def leave(self, connection: Connection) -> None:
        """It is closed."""
        self.connections.pop(connection, None)
        self.expect_nothing(connection)
        self.writes.pop(connection, None)

    def expect_nothing(self, connection: Connection) -> None:
        """It is not waited for to say anything."""
        self.heads.pop(connection, None)
        self.bodies.pop(connection, None)

    def expect_reading(self, connection: Connection, now: float) -> None:
        """There is something for it to take."""
        self.writes.setdefault(connection, (now, connection.unsent()))

    def sweep(self, now: float) -> None:
        """End those that are late."""
        while late := _first_late(self.heads, now - self.limits.head_s):
            del self.heads[late]
            if fault := late.idle:
                late.end(fault)
        while late := _first_late(self.bodies, now - self.limits.body_s):
            del self.bodies[late]
            late.end(Fault.SLOW_BODY)
        for connection in [one for one in self.connections if one.closing]:
            self.expect_reading(connection, now)
        for connection, (since, unsent) in list(self.writes.items()):
            left = connection.unsent()
            if left + PROGRESS_BYTES <= unsent:
                self.writes[connection] = (now, left)
            elif now - since >= self.limits.write_s:
                connection.end(Fault.SLOW_CLIENT)
        self._end_gone(now)

    async def run(self) -> None:
        """Look for late ones until cancelled."""
        clock: Callable[[], float] = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(LOOK_S)
            self.sweep(clock())

    def _end_gone(self, now: float) -> None:
        if now - self.looked < HOSTS_S:
            return
        self.looked = now
        for connection in list(self.connections):
            if connection.unheard_s() >= self.limits.gone_s:
                connection.end(Fault.GONE)


def _first_late(table: dict[Connection, float], before: float) -> Connection | None:
    """Tables are in the order of time."""
    for connection, since in table.items():
        return connection if since <= before else None
    return None
