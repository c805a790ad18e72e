"""Which decode nodes may get more, where there is a limit to what each may have of this proxy.

Where none may, all may: whoever has lost its node goes on beyond a limit rather than not at
all, and new requests wait at the gate for as long as that lasts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from discovery.registry import Node
from proxy.routing.claims import Claims


@dataclass(frozen=True, slots=True)
class Room:
    """At each node: choices, and tokens of prompts and answers; None: any number."""

    requests: int | None = None
    tokens: int | None = None

    def some(self, nodes: Sequence[Node], claims: Claims, tokens: float) -> Sequence[Node]:
        """Those that have room for one more request of so many tokens, or else all."""
        if self.requests is None and self.tokens is None:
            return nodes
        return [one for one in nodes if self._has(one, claims, tokens)] or nodes

    def _has(self, node: Node, claims: Claims, tokens: float) -> bool:
        """One that is larger than the limit goes alone."""
        share = claims.at(node)
        if not share.requests:
            return True
        if self.requests is not None and share.requests >= self.requests:
            return False
        return self.tokens is None or share.tokens + tokens <= self.tokens
