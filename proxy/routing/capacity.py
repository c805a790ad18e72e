"""Limits on what each node may run for this proxy at once.

If all nodes are full, all may be chosen: a request that lost its node exceeds a limit rather
than fail, and new ones wait at the admission gate meanwhile. If decode nodes may run prompts
instead, a full prefill node is never chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from discovery.node import Node
from discovery.registration import Role
from discovery.registry import Registry
from engine.request import ModelKey
from proxy.admission.limits import UNLIMITED, UNLIMITED_NODE, LoadLimit, NodeLimit
from proxy.admission.pools import NodeCounts
from proxy.routing.claims import Claims

ROLES = Role.DECODE, Role.PREFILL


class Proven(Protocol):
    """Which of these nodes get work; see proxy/health/health.py."""

    def __call__(self, nodes: Sequence[Node], *, now: float) -> Sequence[Node]:
        """Those whose breakers are closed."""


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """The limits of each decode node (choices; tokens of prompts and answers), and of each
    prefill node (prompts that are not run yet; their tokens). Of a node's seats, each of
    `workers` processes has an equal part, rounded up.
    """

    decode: NodeLimit = UNLIMITED_NODE
    prefill: LoadLimit = UNLIMITED
    workers: int = 1

    def seats(self, nodes: Sequence[Node]) -> int | None:
        """The seats of these decode nodes; None if one does not say, or no limit asks.

        The same without any node.
        """
        if self.decode.requests != "auto" or not nodes:
            return None
        registered = [one.registration.max_num_seqs for one in nodes]
        known = [-(-seats // self.workers) for seats in registered if seats is not None]
        return sum(known) if len(known) == len(registered) else None

    def count(
        self, registry: Registry, proven: Proven, now: float, model: ModelKey | None
    ) -> NodeCounts:
        """The nodes of a model that get work, and their seats, for the admission gate.

        All of a role where none is proven: without a node there would be no limit.
        """
        known = (registry.nodes(role, now=now, model=model) for role in ROLES)
        decode, prefill = (proven(nodes, now=now) or nodes for nodes in known)
        return NodeCounts(len(decode), len(prefill), self.seats(decode))

    def with_room_or_all(
        self, nodes: Sequence[Node], claims: Claims, tokens: float
    ) -> Sequence[Node]:
        """Nodes with room for a request of this many tokens, or all if none has.

        All `nodes` have the same role.
        """
        return self.with_room(nodes, claims, tokens) or nodes

    def with_room(self, nodes: Sequence[Node], claims: Claims, tokens: float) -> Sequence[Node]:
        """Nodes with room; may be empty."""
        if not nodes or self._limit(nodes[0].role) == UNLIMITED:
            return nodes
        return [one for one in nodes if _has(self._most(one), one, claims, tokens)]

    def _limit(self, role: Role) -> LoadLimit | NodeLimit:
        return self.prefill if role is Role.PREFILL else self.decode

    def _most(self, node: Node) -> LoadLimit:
        if node.role is Role.PREFILL:
            return self.prefill
        return self.decode.of(1, self.seats([node]))


def _has(most: LoadLimit, node: Node, claims: Claims, tokens: float) -> bool:
    """Whether one more request fits; one larger than the limit fits an idle node."""
    share = claims.at(node)
    if not share.requests:
        return True
    if most.requests is not None and share.requests >= most.requests:
        return False
    return most.tokens is None or share.tokens + tokens <= most.tokens
