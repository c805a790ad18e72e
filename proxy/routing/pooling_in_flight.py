"""Prompts that are pooled at one node: what they take of it and give back, as others do."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from discovery.registry import Node
from proxy.routing.claims import Claim, PromptSize
from proxy.routing.in_flight import RoutingState


@dataclass(slots=True, eq=False)
class PoolingInFlight:
    """From the choice of a node to `land`, however it ended; `lengths` are of the prompts."""

    state: RoutingState
    node: Node
    lengths: Sequence[int]
    now: float
    _claims: list[Claim] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Take it all: the node has no KV of them that it would use."""
        for length in self.lengths:
            prompt = PromptSize(length, 0)
            claimed = self.state.claims.claim(self.node, length, self.now, prompt)
            self._claims.append(claimed)

    def prompts_finished(self, now: float) -> None:
        """The node has run all of them, which shows how long it takes for prompts."""
        for claim in self._claims:
            if measured := claim.prompt_finished(now):
                self.state.costs.learn_prompts(self.node, measured)

    def release(self, now: float) -> None:
        """It is over."""
        for claim in self._claims:
            claim.end(now)
