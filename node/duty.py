"""What a node is for, and whether it takes new work: as operators say, until it ends.

A node of either role has all parts, so to change its role is to be asked for the other kind of
leg: weights, KV memory, prefix cache and links to other nodes stay as they are.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from discovery.errors import OrderRefused
from discovery.orders import Order, Standing
from discovery.registration import Role, State
from engine.api import EngineLoad
from node.identity import Identity

HANDED_OVER_S = 5.0  # what legs that were sent elsewhere have to leave in
log = logging.getLogger(__name__)


class Engine(Protocol):
    """What of the engine process a change of role has to do with; see EngineClient."""

    @property
    def load(self) -> EngineLoad:
        """How full it is."""

    @property
    def calm(self) -> asyncio.Event:
        """Set while nobody listens, and no KV waits to be fetched."""

    @property
    def num_legs(self) -> int:
        """How many are listened to."""

    def hand_over(self) -> None:
        """Send those elsewhere that can go on there."""

    async def renice(self, niceness: int) -> None:
        """How much the process gives way to others."""


@dataclass(slots=True)
class Duty:
    """Takes orders at once, and carries out a change of role while `run` runs.

    Before it changes its role, the node takes no new work, and waits until it has nothing in
    flight: for `patience_s`, then it sends elsewhere what can go on there. What cannot, and
    what comes late, is served in the new role.
    """

    identity: Identity
    engine: Engine
    announce: Callable[[], None]
    niceness: Callable[[Role], int]
    patience_s: float
    _ordered: asyncio.Event = field(default_factory=asyncio.Event)

    def obey(self, order: Order) -> Standing:
        """Raises OrderRefused where it is for another process, or too late."""
        identity = self.identity
        if order.to != identity.registration.node_id:
            raise OrderRefused(f"this is node {identity.registration.node_id}")
        if identity.stopping:
            raise OrderRefused("the node is stopping")
        if order.state is not None:
            identity.drained = order.state is State.DRAINING
            log.info("told by an operator: %s", order.state.value)
        if order.role is not None:
            identity.wanted = None if order.role is identity.role else order.role
            log.info("told by an operator: be a %s node", order.role.name.lower())
            self._ordered.set()
        self.announce()
        return self.standing()

    def standing(self) -> Standing:
        """How it is now."""
        identity, load = self.identity, self.engine.load
        return Standing(
            node_id=identity.registration.node_id or "",
            role=identity.role,
            state=identity.state,
            wanted=identity.wanted,
            in_flight=self.engine.num_legs,
            kv_blocks_used=load.total_blocks - load.free_blocks,
        )

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._ordered.wait()
            self._ordered.clear()
            role = self.identity.wanted
            if role is not None and await self._emptied():
                await self._take(role)

    async def _emptied(self) -> bool:
        """Nothing is in flight, or nothing that can leave; False where another order came."""
        for patience_s in (self.patience_s, HANDED_OVER_S):
            with suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await _either(self.engine.calm, self._ordered)
                break
            self.engine.hand_over()
        return not self._ordered.is_set()

    async def _take(self, role: Role) -> None:
        await self.engine.renice(self.niceness(role))
        if self.identity.wanted is role and not self.identity.stopping:
            before = self.identity.role
            self.identity.take(role)
            log.info("a %s node is a %s node now", before.name.lower(), role.name.lower())
            self.announce()


async def _either(one: asyncio.Event, other: asyncio.Event) -> None:
    waiting = [asyncio.create_task(event.wait()) for event in (one, other)]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
