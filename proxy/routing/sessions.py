"""Requests of one session go to the same node: consistent hashing (Karger et al., 1997)."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from discovery.node import Node
from proxy.routing.plan import RoutingQuery
from proxy.routing.policies import Policy

POINTS = 64  # of each node: the busiest of many gets about a third more than its share
POINT_BYTES = 8
POINTS_OF_DIGEST = blake2b.MAX_DIGEST_SIZE // POINT_BYTES
MOST_CROWDS = 16
MOST_KNOWN = 4096


@dataclass(slots=True)
class SessionAffinity:
    """The node behind the session's place on a ring; requests without one use `otherwise`.

    All nodes that were ever candidates are on the ring, for all models, and nodes that are not
    candidates are skipped. So when a node comes or goes, is unhealthy or has no room, only the
    sessions at its own places change nodes, and nothing is rebuilt. Places belong to a node's
    address, so it gets its sessions back after a restart.
    """

    otherwise: Policy
    _places: list[int] = field(default_factory=list)  # in order
    _owners: dict[int, str] = field(default_factory=dict)  # addresses, by their places
    _known: set[str] = field(default_factory=set)
    _crowds: dict[int, tuple[Sequence[Node], Mapping[str, Node]]] = field(default_factory=dict)

    def choose(self, nodes: Sequence[Node], query: RoutingQuery, partner: Node | None) -> Node:
        """See Policy. `nodes` must not change afterwards, since it is indexed once."""
        if not query.request.session:
            return self.otherwise.choose(nodes, query, partner)
        here, owners, places = self._by_address(nodes), self._owners, self._places
        at = bisect_right(places, _points(query.request.session)[0])
        while True:  # each of `nodes` is on the ring, and there is at least one
            if at >= len(places):
                at = 0
            if node := here.get(owners[places[at]]):
                return node
            at += 1

    def _by_address(self, nodes: Sequence[Node]) -> Mapping[str, Node]:
        """Nodes by address; cached, since most plans pass the same tuple.

        What is cached holds the tuple, so that no other one can have its id.
        """
        crowd = self._crowds.get(id(nodes))
        if crowd is None:
            crowd = nodes, {node.address: node for node in nodes}
            self._crowds[id(nodes)] = crowd
            if len(self._crowds) > MOST_CROWDS:
                del self._crowds[next(iter(self._crowds))]
            if new := crowd[1].keys() - self._known:
                self._add(new)
        return crowd[1]

    def _add(self, addresses: set[str]) -> None:
        self._known |= addresses
        if len(self._known) > MOST_KNOWN:
            met = [here.keys() for _, here in self._crowds.values()]
            self._known = addresses = set().union(*met)
            self._owners.clear()
            self._places.clear()
        for address in addresses:
            for number in range(POINTS // POINTS_OF_DIGEST):
                places = _points(f"{number} {address}")
                self._owners.update(dict.fromkeys(places, address))
                self._places += places
        self._places.sort()  # mostly a few after many that are sorted


def _points(name: str) -> list[int]:
    """As many points as fit into a digest."""
    digest = blake2b(name.encode()).digest()
    starts = range(0, len(digest), POINT_BYTES)
    return [int.from_bytes(digest[at : at + POINT_BYTES], "big") for at in starts]
