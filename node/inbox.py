"""What the engine said of one leg, until whoever listens has read it."""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from api.generator import Event, PooledEvent


@dataclass(slots=True)
class Inbox:
    """One leg's events on their way to whoever reads it; None: quiet, but alive.

    `movable`: its driver has another decode node for it; `moved`: it was told to go there.
    """

    events: deque[Event | PooledEvent | None] = field(default_factory=deque)
    filled: asyncio.Event = field(default_factory=asyncio.Event)
    quiet: bool = False
    movable: bool = False
    moved: bool = False

    def put(self, event: Event | PooledEvent | None) -> None:
        """One more."""
        self.quiet = False
        self.events.append(event)
        self.filled.set()

    def pulse(self, *, alive: bool) -> None:
        """Once a round: a sign of life for who heard nothing since the last, and waits."""
        if self.quiet and alive and not self.events:
            self.put(None)
        self.quiet = True

    async def get(self) -> Event | PooledEvent | None:
        """The next, once it is there."""
        while not self.events:
            self.filled.clear()
            await self.filled.wait()
        return self.events.popleft()
