"""Operators' actions on one node: drain, undrain and change of role.

A pdserve node is sent an order, so all its proxies see the result. A vLLM node takes no
orders; only this proxy stops sending to it (`hold`).

ApiError (api)
├── UnknownInstance   404  no node has that id or address
├── DrainRefused      409  the node refuses, or is the last one and `force` is not set
└── NodeUnreachable   502  the node did not answer; whether it got the order is unknown
"""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from api.errors import ApiError, BadRequest
from api.wire import UNREADABLE, explained
from discovery.node import Node
from discovery.orders import OrderResult
from discovery.registration import Role, State
from discovery.registry import Registry
from proxy.admin.drain_lock import DrainLock
from proxy.nodes.instances import ROLES
from proxy.nodes.orders import OrderFailed, OrderSender
from proxy.workers.api import PeerWorkers

Kind = TypeVar("Kind")
HELD = "held"
READY, DRAINING = State.READY, State.DRAINING


class UnknownInstance(ApiError):
    """The name is neither an id nor an address of a known node."""

    status = 404


class DrainRefused(ApiError):
    """The node's state or role does not change."""

    status = 409


class NodeUnreachable(ApiError):
    """The node may have executed the order nevertheless."""

    status = 502


class UndrainRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a call, which may be empty, as may the others."""


class DrainRequest(UndrainRequest, frozen=True):
    """`force`: even if it is the last decode node."""

    force: bool = False


class RoleRequest(DrainRequest, frozen=True):
    """The same, and the new role."""

    role: str | None = None


def read_operator_request(data: bytes, kind: type[Kind]) -> Kind:
    """Decode the body; raises BadRequest, naming the field."""
    try:
        return msgspec.json.decode(data or b"{}", type=kind)
    except UNREADABLE as error:
        wrong = explained(error)
        raise BadRequest(str(wrong), wrong.param) from error


@dataclass(frozen=True, slots=True)
class Operator:
    """Each action returns the node's state after it; all are idempotent."""

    registry: Registry
    orders: OrderSender
    peers: PeerWorkers
    drain_lock: DrainLock
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        """Register for the addresses that other workers hold."""
        self.peers.update_handlers[HELD] = self._apply

    def find(self, name: str) -> Node:
        """The node with this id or address; raises UnknownInstance."""
        if node := self.registry.at(name) or self.registry.find(name):
            return node
        raise UnknownInstance(f"Instance {name!r} is not known here.", "instance")

    async def drain(self, name: str, body: DrainRequest) -> dict[str, Any]:
        """Send it no new work; running legs are finished."""
        node = self.find(name)
        said = f"Draining {node.address}"
        async with self._leaving(node, force=body.force):
            if node.ours:
                result = await self._order(node, state=DRAINING)
                return _answer(node, f"{said}.", result)
            self._apply(node.address, b"")
            await self.peers.put(HELD, node.address, b"")
            return _answer(node, f"{said}, at this proxy.", None, DRAINING)

    async def undrain(self, name: str) -> dict[str, Any]:
        """Let it take new work again."""
        node = self.find(name)
        await self.release(node.address)
        said = f"{node.address} takes work again"
        if node.ours:
            result = await self._order(node, state=READY)
            if result.wanted is not None:
                said = f"{said} once it is a {result.wanted.name.lower()} node"
            return _answer(node, f"{said}.", result)
        ready = msgspec.structs.replace(node.registration, state=READY)
        self.registry.apply(ready, now=node.heard_at)
        return _answer(node, f"{said}.", None, READY)

    async def release(self, address: str) -> None:
        """Stop holding this address; for a node that is not known yet as well."""
        self._apply(address, None)
        await self.peers.put(HELD, address, None)

    async def change_role(self, name: str, body: RoleRequest) -> dict[str, Any]:
        """Change the role once nothing is in flight; the node's own role cancels a change."""
        node, role = self.find(name), _role(body)
        if not node.ours:
            raise BadRequest("A node of vLLM has no role of its own: add it anew.", "instance")
        stays = body.force or role is node.role
        async with self._leaving(node, force=stays):
            result = await self._order(node, role=role)
        kind = role.name.lower()
        said = "will be" if result.wanted else "is"
        return _answer(node, f"{node.address} {said} a {kind} node.", result)

    @asynccontextmanager
    async def _leaving(self, node: Node, *, force: bool) -> AsyncGenerator[None]:
        """Around an order to take no more work; raises DrainRefused for the last decode node.

        Holds the drain lock, so that no other node is drained between check and order.
        """
        if force or node.role is Role.PREFILL:
            yield
            return
        address = node.address
        async with self.drain_lock.turn(address) as others:
            self._must_not_be_last(node, others)
            yield
            if node.ours:
                await self.drain_lock.mark_drained(address, node.node_id)

    async def _order(
        self, node: Node, *, state: State | None = None, role: Role | None = None
    ) -> OrderResult:
        """Send an order. Its result counts here at once, elsewhere with the next heartbeat."""
        try:
            result = await self.orders.send(node, state=state, role=role)
        except OrderFailed as failure:
            kind = DrainRefused if failure.refused else NodeUnreachable
            raise kind(f"{node.address}: {failure}", "instance") from failure
        now = self.registry.at(node.address)
        if now is not None and now.node_id == result.node_id and now.role is result.role:
            said = msgspec.structs.replace(now.registration, state=result.state)
            self.registry.apply(said, now=self.clock())
        return result

    def _apply(self, address: str, value: bytes | None) -> None:
        if value is None:
            self.registry.release(address)
        else:
            self.registry.hold(address)

    def _must_not_be_last(self, node: Node, leaving: frozenset[str]) -> None:
        """Decode nodes can run prompts alone, but prefill nodes cannot decode."""
        model = node.registration.model
        others = [
            one
            for one in self.registry.nodes(node.role, now=self.clock())
            if one.node_id != node.node_id and one.registration.model == model
        ]
        if any(one.address not in leaving for one in others):
            return
        if others:
            what = f"{others[0].address} is being asked to leave too, and there is no other"
            raise DrainRefused(f"{what} decode node: try again.", "instance")
        what = f"{node.address} is the last decode node that takes work"
        raise DrainRefused(
            f'{what}: add another one first, or say {{"force": true}}.', "instance"
        )


def _role(body: RoleRequest) -> Role:
    if body.role not in ROLES:
        raise BadRequest(f"role has to be one of {', '.join(ROLES)}.", "role")
    return ROLES[body.role]


def _answer(
    node: Node, message: str, result: OrderResult | None, state: State = READY
) -> dict[str, Any]:
    """The JSON answer; null for what vLLM's nodes do not report."""
    wanted = result.wanted if result else None
    return {
        "message": message,
        "node_id": node.node_id,
        "http_address": node.address,
        "role": (result.role if result else node.role).name.lower(),
        "wanted_role": wanted and wanted.name.lower(),
        "state": (result.state if result else state).value,
        "in_flight": result.in_flight if result else None,
        "kv_blocks_used": result.kv_blocks_used if result else None,
    }
