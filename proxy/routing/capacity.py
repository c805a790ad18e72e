"""Which nodes may get more, where there is a limit to what each may have of this proxy.

Where none may, all may: whoever has lost its node goes on beyond a limit rather than not at
all, and new requests wait at the gate for as long as that lasts. Where decode nodes may run
prompts instead, nobody waits for a prefill node, and one that is full gets nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from discovery.registration import Role
from discovery.registry import Node
from proxy.admission.limits import UNLIMITED, LoadLimit
from proxy.routing.claims import Claims


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """Of each decode node: choices, and tokens of prompts and answers; of each prefill node:
    prompts that are not run yet, and their tokens.
    """

    decode: LoadLimit = UNLIMITED
    prefill: LoadLimit = UNLIMITED

    def with_room_or_all(
        self, nodes: Sequence[Node], claims: Claims, tokens: float
    ) -> Sequence[Node]:
        """Those that have room for one more request of so many tokens, or else all.

        All `nodes` are of one role.
        """
        return self.with_room(nodes, claims, tokens) or nodes

    def with_room(self, nodes: Sequence[Node], claims: Claims, tokens: float) -> Sequence[Node]:
        """Those that have room, or nobody."""
        if not nodes or (most := self._most(nodes[0].role)) == UNLIMITED:
            return nodes
        return [one for one in nodes if _has(most, one, claims, tokens)]

    def _most(self, role: Role) -> LoadLimit:
        return self.prefill if role is Role.PREFILL else self.decode


def _has(most: LoadLimit, node: Node, claims: Claims, tokens: float) -> bool:
    """One that is larger than the limit goes alone."""
    share = claims.at(node)
    if not share.requests:
        return True
    if most.requests is not None and share.requests >= most.requests:
        return False
    return most.tokens is None or share.tokens + tokens <= most.tokens
