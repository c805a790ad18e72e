"""Drains of nodes are serialised, as two drained at once might be the last two.

Before a worker asks a node to stop taking work, it puts the node's address into the shared
state and reads what the others have put there. Of two nodes drained at the same moment by two
workers, each sees the other, and neither goes. A worker that dies takes nothing back, so what
it has put there counts for `DEAD_S` only.
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
DEAD_S = 15.0  # longer than a live worker takes: an order has 5 s, and each `put` 2 s


@dataclass(slots=True)
class DrainLock:
    """One drain at a time in this worker, announced to the others; knows the others' drains."""

    registry: Registry
    peers: PeerWorkers
    clock: Callable[[], float] = time.monotonic
    _draining: dict[str, float] = field(default_factory=dict)  # since when, by address
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
                yield self._drained_by_others(address)
            finally:
                await self.peers.put(LEAVING, address, None)

    async def mark_drained(self, address: str, node_id: str) -> None:
        """Tell the other workers that this node has confirmed its drain."""
        await self.peers.put(LEAVING, address, node_id.encode())

    def _drained_by_others(self, address: str) -> frozenset[str]:
        since = self.clock() - DEAD_S
        self._draining = {one: at for one, at in self._draining.items() if at > since}
        return frozenset(self._draining.keys() - {address})

    def _apply(self, address: str, value: bytes | None) -> None:
        if value is None:
            self._draining.pop(address, None)
        elif value == DRAIN_ASKED:
            self._draining[address] = self.clock()
        elif (node := self.registry.at(address)) and node.node_id == value.decode():
            draining = msgspec.structs.replace(node.registration, state=State.DRAINING)
            self.registry.apply(draining, now=self.clock())
