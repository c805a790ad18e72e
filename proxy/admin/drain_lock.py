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
class DrainLock:
    """One drain at a time in this worker, announced to the others; knows the others' drains."""

    registry: Registry
    peers: PeerWorkers
    clock: Callable[[], float] = time.monotonic
    _draining: set[str] = field(default_factory=set)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        """Register for the drains of other workers."""
        self.peers.update_handlers[LEAVING] = self._apply

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncGenerator[frozenset[str]]:
        """Hold the lock while draining this node; yields the nodes others are draining now."""
        async with self._turn:
            await self.peers.put(LEAVING, address, DRAIN_ASKED)
            try:
                yield frozenset(self._draining - {address})
            finally:
                await self.peers.put(LEAVING, address, None)

    async def mark_drained(self, address: str, node_id: str) -> None:
        """Tell the other workers that this node has confirmed its drain."""
        await self.peers.put(LEAVING, address, node_id.encode())

    def _apply(self, address: str, value: bytes | None) -> None:
        if value is None:
            self._draining.discard(address)
        elif value == DRAIN_ASKED:
            self._draining.add(address)
        elif (node := self.registry.at(address)) and node.node_id == value.decode():
            draining = msgspec.structs.replace(node.registration, state=State.DRAINING)
            self.registry.apply(draining, now=self.clock())
