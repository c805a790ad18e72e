"""A policy that weighs prefix cache hits against load."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from discovery.node import Node
from discovery.registration import Role
from proxy.routing.claims import Claims
from proxy.routing.plan import RoutingQuery
from proxy.routing.prefix_hashes import STRIDE
from proxy.routing.prefixes import PrefixIndex
from proxy.routing.sampling import MAX_CANDIDATES, sample_nodes

MOST_HOLDERS = 2
USUAL_TOKENS = 512  # of a request that another proxy has sent


@dataclass(frozen=True, slots=True)
class PrefixAware:
    """The node with the fewest tokens of work: the prompt's tokens that it has not cached, and
    those of requests there. Both are in tokens, so neither needs a weight.

    At a prefill node, requests' tokens are those still to be computed; at a decode node, those
    whose KV is read in every step, and the prompt's uncached tokens have to be transferred.
    """

    prefixes: PrefixIndex
    claims: Claims
    chance: Random

    def choose(self, nodes: Sequence[Node], query: RoutingQuery, partner: Node | None) -> Node:
        """Compare nodes that hold its prefix and some others; ties are broken at random."""
        some = nodes
        if len(nodes) > MAX_CANDIDATES:
            holders = self.prefixes.holders(query.prefix_hashes, MOST_HOLDERS)
            some = sample_nodes(nodes, holders, self.chance)
        return min(some, key=lambda node: (self._ahead(node, query), self.chance.random()))

    def _ahead(self, node: Node, query: RoutingQuery) -> int:
        missing = query.num_tokens - self.prefixes.cached(node, query.prefix_hashes)
        share = self.claims.at(node)
        work = share.ahead.tokens if node.role is Role.PREFILL else share.tokens
        others = self.claims.others_at(node) * USUAL_TOKENS
        # a few tokens more or less are no reason to leave the node that has the rest
        return (missing + work + others) // STRIDE
