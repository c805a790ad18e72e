"""Nodes leave their work one after the other: two at once might be the last two.

Each worker writes on the board whom it is about to ask, and looks at what the others have
written before it does. Of two at once, at two workers, neither may go.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from discovery.registration import State
from discovery.registry import Registry
from proxy.workers.api import Siblings

LEAVING = "leaving"
ASKED = b""


@dataclass(slots=True)
class Departures:
    """Those that are being asked to leave, by any worker."""

    registry: Registry
    siblings: Siblings
    clock: Callable[[], float] = time.monotonic
    _asked: set[str] = field(default_factory=set)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        """What other workers write is heard here."""
        self.siblings.adopts[LEAVING] = self._adopt

    @asynccontextmanager
    async def alone(self, address: str) -> AsyncGenerator[frozenset[str]]:
        """Whoever is asked here meanwhile waits; tells whom others are asking right now."""
        async with self._turn:
            await self.siblings.put(LEAVING, address, ASKED)
            try:
                yield frozenset(self._asked - {address})
            finally:
                await self.siblings.put(LEAVING, address, None)

    async def left(self, address: str, node_id: str) -> None:
        """This node has said that it takes no more work, which the others hear at once."""
        await self.siblings.put(LEAVING, address, node_id.encode())

    def _adopt(self, address: str, value: bytes | None) -> None:
        if value is None:
            self._asked.discard(address)
        elif value == ASKED:
            self._asked.add(address)
        elif (node := self.registry.at(address)) and node.node_id == value.decode():
            said = msgspec.structs.replace(node.registration, state=State.DRAINING)
            self.registry.apply(said, now=self.clock())
