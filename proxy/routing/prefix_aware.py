"""To whom most of a prompt is known, unless it has too much to do."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from discovery.registration import Role
from discovery.registry import Node
from proxy.routing.claims import Claims
from proxy.routing.plan import RoutingQuery
from proxy.routing.prefix_hashes import STRIDE
from proxy.routing.prefixes import PrefixIndex
from proxy.routing.sampling import MAX_CANDIDATES, sample_nodes

MOST_HOLDERS = 2
USUAL_TOKENS = 512  # of a request that somebody else has sent


@dataclass(frozen=True, slots=True)
class PrefixAware:
    """The node that has fewest tokens before it: the prompt's own that it does not have, and
    those of requests there. Both are work of one kind, so neither needs a weight.

    For prefill the work ahead is what prompts have left to compute; for decode it is the
    tokens whose KV is read in every step, and the prompt's own have to be moved.
    """

    prefixes: PrefixIndex
    claims: Claims
    chance: Random

    def choose(self, nodes: Sequence[Node], ask: RoutingQuery, partner: Node | None) -> Node:
        """Compare those that have some of it, and some that may not; ties by chance."""
        some = nodes
        if len(nodes) > MAX_CANDIDATES:
            holders = self.prefixes.holders(ask.prefix_hashes, MOST_HOLDERS)
            some = sample_nodes(nodes, holders, self.chance)
        return min(some, key=lambda node: (self._ahead(node, ask), self.chance.random()))

    def _ahead(self, node: Node, ask: RoutingQuery) -> int:
        missing = ask.num_tokens - self.prefixes.cached(node, ask.prefix_hashes)
        share = self.claims.at(node)
        work = share.ahead.tokens if node.role is Role.PREFILL else share.tokens
        others = self.claims.others_at(node) * USUAL_TOKENS
        # few tokens more or less are no reason to leave the node that has the rest
        return (missing + work + others) // STRIDE
