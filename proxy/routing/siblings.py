"""The choices of one request go to the same nodes: its prompt is computed and moved once."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from discovery.registration import Role
from discovery.registry import Node
from engine.request import Request
from proxy.routing.policies import Policy

MOST_KNOWN = 1024
Family = tuple[str, int, Role, str | None]


@dataclass(slots=True)
class TogetherPolicy:
    """Another policy's choice for the first of several choices, and the same for the others.

    They are told by what `api/calls.py` makes of one call: ids that differ in the number at
    their end, equal seeds, and a sample index for each but the first. Where the first one's
    node is not to be had, the other policy chooses anew.
    """

    policy: Policy
    _chosen: dict[Family, str] = field(default_factory=dict)

    def choose(self, nodes: Sequence[Node], request: Request, partner: Node | None) -> Node:
        """See Policy."""
        outer_id, _, number = request.request_id.rpartition("-")
        if not number.isdecimal():
            return self.policy.choose(nodes, request, partner)
        partner_id = partner.node_id if partner else None
        family = outer_id, request.sampling.seed, nodes[0].role, partner_id
        if request.sampling.sample_index:
            for node in nodes:
                if node.node_id == self._chosen.get(family):
                    return node
        chosen = self.policy.choose(nodes, request, partner)
        self._chosen.pop(family, None)
        self._chosen[family] = chosen.node_id  # the latest last
        while len(self._chosen) > MOST_KNOWN:
            del self._chosen[next(iter(self._chosen))]
        return chosen
