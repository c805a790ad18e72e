"""Drains of nodes are serialised, as two drained at once might be the last two.

Before a worker asks a node to stop taking work, it puts the node's address into the shared
state and reads what the others have put there. Of two nodes drained at the same moment by two
workers, each sees the other, and neither goes.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from discovery.registration import State
from discovery.registry import Registry
from proxy.workers.api import PeerWorkers

LEAVING = "leaving"
DRAIN_ASKED = b""


@dataclass(slots=True)
class Departures:
    """Those that are being asked to leave, by any worker."""

    registry: Registry
    peers: PeerWorkers
    clock: Callable[[], float] = time.monotonic
    _asked: set[str] = field(default_factory=set)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        """What other workers write is heard here."""
        self.peers.update_handlers[LEAVING] = self._adopt

    @asynccontextmanager
    async def alone(self, address: str) -> AsyncGenerator[frozenset[str]]:
        """Whoever is asked here meanwhile waits; tells whom others are asking right now."""
        async with self._turn:
            await self.peers.put(LEAVING, address, DRAIN_ASKED)
            try:
                yield frozenset(self._asked - {address})
            finally:
                await self.peers.put(LEAVING, address, None)

    async def left(self, address: str, node_id: str) -> None:
        """This node has said that it takes no more work, which the others hear at once."""
        await self.peers.put(LEAVING, address, node_id.encode())

    def _adopt(self, address: str, value: bytes | None) -> None:
        if value is None:
            self._asked.discard(address)
        elif value == DRAIN_ASKED:
            self._asked.add(address)
        elif (node := self.registry.at(address)) and node.node_id == value.decode():
            said = msgspec.structs.replace(node.registration, state=State.DRAINING)
            self.registry.apply(said, now=self.clock())
