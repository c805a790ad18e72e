"""The queue of one leg's events, from the engine client to the HTTP stream that reads them, and
the leg's name on this node.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from api.generator import EndEvent, Event, FailedEvent, Leg, PooledEvent, TokenEvent
from engine.request import RequestId

LONGEST_ID = 256  # of a caller's id: it is part of the ticket's, which is limited


@dataclass(slots=True)
class LegInbox:
    """Events in order; None is a keep-alive.

    `can_migrate`: the leg's proxy can continue it at another decode node; `migrated`: the proxy
    was told to.
    """

    events: deque[Event | PooledEvent | None] = field(default_factory=deque)
    filled: asyncio.Event = field(default_factory=asyncio.Event)
    quiet: bool = False
    can_migrate: bool = False
    migrated: bool = False

    def put(self, event: Event | PooledEvent | None) -> None:
        """Append an event and wake the reader."""
        self.quiet = False
        self.events.append(event)
        self.filled.set()

    def keep_alive(self, *, alive: bool) -> None:
        """Called on a timer: put a None if no event came since the last call."""
        if self.quiet and alive and not self.events:
            self.put(None)
        self.quiet = True

    async def get(self) -> Event | PooledEvent | None:
        """Wait for the next event."""
        while not self.events:
            self.filled.clear()
            await self.filled.wait()
        return self.events.popleft()


def leg_id(request_id: RequestId, number: int) -> RequestId:
    """A leg's own id: the caller's id, cut if it is long, and a number unique on this node."""
    return RequestId(f"{request_id[:LONGEST_ID]}~{number}")


def is_last(event: Event, leg: Leg) -> bool:
    """Whether the leg ends with this event. A prefill leg that is not kept open ends with its
    token, while the lease of its KV goes on.
    """
    if isinstance(event, TokenEvent):
        return not leg.keep_open if leg.hold else event.finish is not None
    return isinstance(event, FailedEvent | EndEvent)
