"""Executes operators' orders on a node: drain, undrain, and change of role.

A node of either role has all parts, so a change of role only changes which legs proxies send:
weights, KV memory, prefix cache and links to other nodes stay as they are.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from discovery.errors import OrderRefused
from discovery.orders import NodeOrder, OrderResult
from discovery.registration import Role, State
from engine.api import EngineLoad
from node.identity import NodeIdentity

MIGRATION_S = 5.0  # for legs that were told to continue elsewhere
log = logging.getLogger(__name__)


class EngineControl(Protocol):
    """What a change of role needs of the engine process; see EngineClient."""

    @property
    def load(self) -> EngineLoad:
        """The engine's load."""

    @property
    def quiescent(self) -> asyncio.Event:
        """Set while no leg is open and no KV waits to be fetched."""

    @property
    def num_legs(self) -> int:
        """How many legs are open."""

    def migrate_legs(self) -> None:
        """End the legs that can continue at another node."""

    async def renice(self, niceness: int) -> None:
        """Set the engine process's niceness."""


@dataclass(slots=True)
class RoleController:
    """Executes orders at once, but changes the role in `run`, once the node is empty.

    Until then the node takes no new work. It waits `patience_s` for its legs to end, then
    migrates those that can continue elsewhere. Legs that cannot, and legs that arrive late, are
    served in the new role.
    """

    identity: NodeIdentity
    engine: EngineControl
    announce: Callable[[], None]
    niceness: Callable[[Role], int]
    patience_s: float
    _ordered: asyncio.Event = field(default_factory=asyncio.Event)

    def execute(self, order: NodeOrder) -> OrderResult:
        """Execute one order; raises OrderRefused if it is for another process, or too late."""
        identity = self.identity
        if order.to != identity.registration.node_id:
            raise OrderRefused(f"this is node {identity.registration.node_id}")
        if identity.stopping:
            raise OrderRefused("the node is stopping")
        if order.state is not None:
            identity.drained = order.state is State.DRAINING
            log.info("told by an operator: %s", order.state.value)
        if order.role is not None:
            log.info("told by an operator: be a %s node", order.role.name.lower())
            self._order_role(None if order.role is identity.role else order.role)
        self.announce()
        return self.result()

    def result(self) -> OrderResult:
        """The node's role, state and load after an order."""
        identity, load = self.identity, self.engine.load
        return OrderResult(
            node_id=identity.registration.node_id or "",
            role=identity.role,
            state=identity.state,
            wanted=identity.next_role,
            in_flight=self.engine.num_legs,
            kv_blocks_used=load.total_blocks - load.free_blocks,
        )

    def _order_role(self, role: Role | None) -> None:
        """None: keep the role. A repeated order does not begin the wait anew."""
        if role is not self.identity.next_role:
            self.identity.next_role = role
            self._ordered.set()

    async def run(self) -> None:
        """Change the role when ordered, until cancelled."""
        while True:
            await self._ordered.wait()
            self._ordered.clear()
            role = self.identity.next_role
            if role is not None and await self._wait_until_empty():
                await self._change_role(role)

    async def _wait_until_empty(self) -> bool:
        """Wait until no leg is left that can end or migrate; False if another order came."""
        for patience_s in (self.patience_s, MIGRATION_S):
            with suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await _first_of(self.engine.quiescent, self._ordered)
                break
            self.engine.migrate_legs()
        return not self._ordered.is_set()

    async def _change_role(self, role: Role) -> None:
        if self.identity.next_role is not role or self.identity.stopping:
            return
        before = self.identity.role
        self.identity.change_role(role)
        log.info("a %s node is a %s node now", before.name.lower(), role.name.lower())
        self.announce()
        await self.engine.renice(self.niceness(role))


async def _first_of(one: asyncio.Event, other: asyncio.Event) -> None:
    waiting = [asyncio.create_task(event.wait()) for event in (one, other)]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
