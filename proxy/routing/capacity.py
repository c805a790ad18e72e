"""Limits on what each node may run for this proxy at once.

If all nodes are full, all may be chosen: a request that lost its node exceeds a limit rather
than fail, and new ones wait at the admission gate meanwhile. If decode nodes may run prompts
instead, a full prefill node is never chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from discovery.node import Node
from discovery.registration import Role
from proxy.admission.limits import UNLIMITED, LoadLimit
from proxy.routing.claims import Claims


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """The limits of each decode node (choices; tokens of prompts and answers), and of each
    prefill node (prompts that are not run yet; their tokens).
    """

    decode: LoadLimit = UNLIMITED
    prefill: LoadLimit = UNLIMITED

    def with_room_or_all(
        self, nodes: Sequence[Node], claims: Claims, tokens: float
    ) -> Sequence[Node]:
        """Nodes with room for a request of this many tokens, or all if none has.

        All `nodes` have the same role.
        """
        return self.with_room(nodes, claims, tokens) or nodes

    def with_room(self, nodes: Sequence[Node], claims: Claims, tokens: float) -> Sequence[Node]:
        """Nodes with room; may be empty."""
        if not nodes or (most := self._most(nodes[0].role)) == UNLIMITED:
            return nodes
        return [one for one in nodes if _has(most, one, claims, tokens)]

    def _most(self, role: Role) -> LoadLimit:
        return self.prefill if role is Role.PREFILL else self.decode


def _has(most: LoadLimit, node: Node, claims: Claims, tokens: float) -> bool:
    """Whether one more request fits; one larger than the limit fits an idle node."""
    share = claims.at(node)
    if not share.requests:
        return True
    if most.requests is not None and share.requests >= most.requests:
        return False
    return most.tokens is None or share.tokens + tokens <= most.tokens
