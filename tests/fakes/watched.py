"""A registry that can be waited for."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from discovery.node import Node
from discovery.registration import Registration
from discovery.registry import Registry

PATIENCE_S = 60


@dataclass
class WatchedRegistry(Registry):
    """Pulses whenever something was taken in or forgotten."""

    changed: asyncio.Event = field(default_factory=asyncio.Event)
    beats: list[Registration] = field(default_factory=list)

    def apply(
        self, registration: Registration, *, now: float, static: bool = False
    ) -> Node | None:
        node = super().apply(registration, now=now, static=static)
        self.beats.append(registration)
        self.changed.set()
        return node

    def remove(self, http_address: str) -> Node | None:
        gone = super().remove(http_address)
        self.changed.set()
        return gone

    def expire(self, *, now: float) -> list[Node]:
        late = super().expire(now=now)
        self.changed.set()
        return late

    async def until(self, true: Callable[[], object]) -> None:
        """Wait for a change after which it holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not true():
                self.changed.clear()
                await self.changed.wait()
