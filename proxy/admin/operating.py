"""What operators do with one node: take it out of work, bring it back, change its role.

A node of ours is told itself, so every proxy that it registers with sees the same. One of
vLLM cannot be told, and is held by this proxy alone.

ApiError (api)
├── UnknownInstance   404  nobody of that name is known
├── Unwilling         409  the node says no, or it is the last one and nobody insists
└── Unreachable       502  the node does not answer; what becomes of it is not known
"""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from api.errors import ApiError, BadRequest
from api.wire import UNREADABLE, explained
from discovery.orders import OrderResult
from discovery.registration import Role, State
from discovery.registry import Node, Registry
from proxy.admin.departures import Departures
from proxy.nodes.instances import ROLES
from proxy.nodes.orders import OrderFailed, OrderSender
from proxy.workers.api import PeerWorkers

HELD = "held"
READY, DRAINING = State.READY, State.DRAINING


class UnknownInstance(ApiError):
    """Neither an id nor an address of a node that is known."""

    status = 404


class Unwilling(ApiError):
    """It stays as it is."""

    status = 409


class Unreachable(ApiError):
    """It may have heard and not been able to say so."""

    status = 502


class Wish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of such a call, which may be empty. `force`: even if it is the last one."""

    force: bool = False
    role: str | None = None


def read_wish(data: bytes) -> Wish:
    """Raises BadRequest, naming the field."""
    try:
        return msgspec.json.decode(data or b"{}", type=Wish)
    except UNREADABLE as error:
        wrong = explained(error)
        raise BadRequest(str(wrong), wrong.param) from error


@dataclass(frozen=True, slots=True)
class Operator:
    """Each call answers with how the node stands after it; done twice, it is done."""

    registry: Registry
    orders: OrderSender
    peers: PeerWorkers
    departures: Departures
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        """What another worker was told to hold is held here."""
        self.peers.update_handlers[HELD] = self._adopt

    def find(self, name: str) -> Node:
        """By its id or its address; raises UnknownInstance."""
        if node := self.registry.at(name) or self.registry.find(name):
            return node
        raise UnknownInstance(f"Instance {name!r} is not known here.", "instance")

    async def drain(self, name: str, wish: Wish) -> dict[str, Any]:
        """No new work; what it has goes on to its end."""
        node = self.find(name)
        said = f"Draining {_address(node)}"
        async with self._leaving(node, force=wish.force):
            if node.ours:
                standing = await self._tell(node, state=DRAINING)
                return _answer(node, f"{said}.", standing)
            self._adopt(_address(node), b"")
            await self.peers.put(HELD, _address(node), b"")
            return _answer(node, f"{said}, at this proxy.", None, DRAINING)

    async def undrain(self, name: str) -> dict[str, Any]:
        """New work as before."""
        node = self.find(name)
        await self.let_go(_address(node))
        said = f"{_address(node)} takes work again."
        if node.ours:
            return _answer(node, said, await self._tell(node, state=READY))
        ready = msgspec.structs.replace(node.registration, state=READY)
        self.registry.apply(ready, now=node.heard_at)
        return _answer(node, said, None, READY)

    async def let_go(self, address: str) -> None:
        """Hold nobody there any more, who comes later included."""
        self._adopt(address, None)
        await self.peers.put(HELD, address, None)

    async def change_role(self, name: str, wish: Wish) -> dict[str, Any]:
        """The other kind of leg, once it has nothing in flight; its own: stay as it is."""
        node, role = self.find(name), _role(wish)
        if not node.ours:
            raise BadRequest("A node of vLLM has no role of its own: add it anew.", "instance")
        stays = wish.force or role is node.role
        async with self._leaving(node, force=stays):
            standing = await self._tell(node, role=role)
        kind = role.name.lower()
        said = "will be" if standing.wanted else "is"
        return _answer(node, f"{_address(node)} {said} a {kind} node.", standing)

    @asynccontextmanager
    async def _leaving(self, node: Node, *, force: bool) -> AsyncGenerator[None]:
        """While it is told to take no more work; raises Unwilling for the last one.

        Nobody else may go meanwhile: looking and telling are one.
        """
        if force or node.role is Role.PREFILL:
            yield
            return
        address = _address(node)
        async with self.departures.alone(address) as others:
            self._must_not_be_last(node, others)
            yield
            if node.ours:
                await self.departures.left(address, node.node_id)

    async def _tell(
        self, node: Node, *, state: State | None = None, role: Role | None = None
    ) -> OrderResult:
        """Its answer counts here at once; other proxies hear it with its next word."""
        try:
            standing = await self.orders.send(node, state=state, role=role)
        except OrderFailed as failure:
            kind = Unwilling if failure.refused else Unreachable
            raise kind(f"{_address(node)}: {failure}", "instance") from failure
        now = self.registry.at(_address(node))
        if now is not None and now.node_id == standing.node_id and now.role is standing.role:
            said = msgspec.structs.replace(now.registration, state=standing.state)
            self.registry.apply(said, now=self.clock())
        return standing

    def _adopt(self, address: str, value: bytes | None) -> None:
        if value is None:
            self.registry.let_go(address)
        else:
            self.registry.hold(address)

    def _must_not_be_last(self, node: Node, leaving: frozenset[str]) -> None:
        """Without a prefill node decode runs prompts; without a decode node nothing goes."""
        model = node.registration.model
        others = [
            one
            for one in self.registry.nodes(node.role, now=self.clock())
            if one.node_id != node.node_id and one.registration.model == model
        ]
        if any(_address(one) not in leaving for one in others):
            return
        if others:
            what = f"{_address(others[0])} is being asked to leave too, and there is no other"
            raise Unwilling(f"{what} decode node: try again.", "instance")
        what = f"{_address(node)} is the last decode node that takes work"
        raise Unwilling(f'{what}: add another one first, or say {{"force": true}}.', "instance")


def _role(wish: Wish) -> Role:
    if wish.role not in ROLES:
        raise BadRequest(f"role has to be one of {', '.join(ROLES)}.", "role")
    return ROLES[wish.role]


def _answer(
    node: Node, message: str, standing: OrderResult | None, state: State = READY
) -> dict[str, Any]:
    """Null is what is not known: vLLM's nodes do not say."""
    wanted = standing.wanted if standing else None
    return {
        "message": message,
        "node_id": node.node_id,
        "http_address": _address(node),
        "role": (standing.role if standing else node.role).name.lower(),
        "wanted_role": wanted and wanted.name.lower(),
        "state": (standing.state if standing else state).value,
        "in_flight": standing.in_flight if standing else None,
        "kv_blocks_used": standing.kv_blocks_used if standing else None,
    }


def _address(node: Node) -> str:
    return node.registration.http_address
