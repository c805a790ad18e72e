"""What a policy is asked (RoutingQuery), and what a planner answers (Plan)."""

from dataclasses import dataclass
from enum import StrEnum

from discovery.node import Node
from engine.request import Request
from proxy.routing.prefix_hashes import PrefixHashes, hash_prefixes


@dataclass(frozen=True, slots=True)
class Estimate:
    """Predicted seconds from the plan to the first token, and to the last."""

    first_token_s: float
    finish_s: float


class PlanReason(StrEnum):
    """What decided whether a prefill node takes part, and which one."""

    POLICY = "policy"  # the policies chose both nodes
    CHEAPER = "cheaper"  # than with any prefill node, as --local-prefill auto found
    NO_PREFILL = "no_prefill"  # no prefill node is compatible and has room
    ALWAYS = "always"  # --local-prefill says so
    CHOICE = "choice"  # (of `n`) it goes where the request's first choice went


@dataclass(frozen=True, slots=True)
class Plan:
    """The nodes of an attempt; without a prefill node, decode runs the prompt too."""

    prefill: Node | None
    decode: Node
    estimate: Estimate | None = None
    why: PlanReason = PlanReason.POLICY

    @property
    def first(self) -> Node:
        """The node whose leg is opened first."""
        return self.prefill or self.decode

    @property
    def pair(self) -> tuple[str, str] | None:
        """The ids of both nodes."""
        return (self.prefill.node_id, self.decode.node_id) if self.prefill else None

    @property
    def estimated_s(self) -> tuple[float, float] | None:
        """Seconds to the first token and to the last."""
        found = self.estimate
        return (found.first_token_s, found.finish_s) if found else None

    def peer_of(self, node: Node) -> Node:
        """The node at the other end of this node's KV transfer."""
        return self.prefill if self.prefill and node is self.decode else self.decode


@dataclass(frozen=True, slots=True)
class RoutingQuery:
    """One request as the policies see it, at one moment."""

    request: Request
    now: float
    prefix_hashes: PrefixHashes
    num_tokens: int  # of the prompt, and of what earlier attempts generated

    @classmethod
    def of(cls, request: Request, now: float) -> "RoutingQuery":
        """The query for a request, with the prefix hashes of its tokens."""
        tokens = request.tokens
        return cls(request, now, hash_prefixes(request.cache_namespace, tokens), len(tokens))
