"""Pooling requests in progress at one node: what they claim of it until they end."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from discovery.node import Node
from proxy.routing.claims import Claim, PromptSize
from proxy.routing.in_flight import RoutingState


@dataclass(slots=True, eq=False)
class PoolingInFlight:
    """Claims the node on creation, until `release`; `lengths` are the prompts' tokens."""

    state: RoutingState
    node: Node
    lengths: Sequence[int]
    now: float
    _claims: list[Claim] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Claim all prompts in full: pooling uses no cached KV."""
        for length in self.lengths:
            prompt = PromptSize(length, 0)
            claimed = self.state.claims.claim(self.node, length, self.now, prompt)
            self._claims.append(claimed)

    def prompts_finished(self, now: float) -> None:
        """Record that the node has run all of them; learn how long it took."""
        for claim in self._claims:
            if measured := claim.prompt_finished(now):
                self.state.costs.learn_prompts(self.node, measured)

    def release(self, now: float) -> None:
        """Give back all claims."""
        for claim in self._claims:
            claim.end(now)
