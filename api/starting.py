"""Lets many things start a few at a time, so that what goes on already goes on meanwhile."""

import asyncio
from dataclasses import dataclass, field

STARTING = 8  # in one turn of the event loop


@dataclass(frozen=True, slots=True)
class Starts:
    """Those that come at once wait for a turn of the event loop in which they may start."""

    _few: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(STARTING))

    async def wait(self) -> None:
        """Wait for such a turn, in order of the calls."""
        async with self._few:
            await asyncio.sleep(0)
