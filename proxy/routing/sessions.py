"""Requests of one session go to the same node: consistent hashing (Karger et al., 1997)."""

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from discovery.registry import Node
from proxy.routing.plan import Ask
from proxy.routing.policies import Policy

POINTS = 64  # of each node: the busiest of many gets about a third more than its part
POINT_BYTES = 8


@dataclass(slots=True)
class BySession:
    """The node behind the session's place on a ring; requests without one go by `otherwise`.

    When a node comes or goes, only the sessions at its own places change their node. Places
    are of a node's address: it finds its sessions again after a restart.
    """

    otherwise: Policy
    points: int = POINTS
    _ring: list[tuple[int, str]] = field(default_factory=list)
    _known: tuple[str, ...] = ()

    def choose(self, nodes: Sequence[Node], ask: Ask, partner: Node | None) -> Node:
        """See Policy."""
        if not ask.request.session:
            return self.otherwise.choose(nodes, ask, partner)
        addresses = tuple([node.registration.http_address for node in nodes])
        if addresses != self._known:
            self._change(set(addresses))
            self._known = addresses
        at = bisect_right(self._ring, (_place(ask.request.session), ""))
        _, address = self._ring[at % len(self._ring)]
        return nodes[addresses.index(address)]

    def _change(self, addresses: set[str]) -> None:
        before = set(self._known)
        if gone := before - addresses:
            self._ring = [point for point in self._ring if point[1] not in gone]
        for address in addresses - before:
            for number in range(self.points):
                insort(self._ring, (_place(f"{number} {address}"), address))


def _place(name: str) -> int:
    digest = blake2b(name.encode(), digest_size=POINT_BYTES).digest()
    return int.from_bytes(digest, "big")
