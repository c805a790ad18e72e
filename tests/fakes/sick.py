"""A cluster's nodes, some of which fail every call in the way that a test says."""

from collections import Counter
from collections.abc import AsyncGenerator, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

from api.generator import Event, Leg
from discovery.node import Node
from engine.request import Request
from proxy.pipeline import Pipeline
from tests.fakes.cluster import Cluster


@dataclass
class Sick:
    """A NodeClient; `ills` by node id, `asked` counts calls, `waits` are the proxy's pauses.

    Each pause passes on the cluster's clock, and with `beats` hearts beat meanwhile.
    """

    cluster: Cluster
    ills: MutableMapping[str, Any] = field(default_factory=dict)
    beats: bool = False
    asked: Counter[str] = field(default_factory=Counter)
    waits: list[float] = field(default_factory=list)

    def pipeline(self, **more: Any) -> Pipeline:  # noqa: ANN401
        """The cluster's, with these calls and pauses."""
        parts = {"client": self, "sleep": self.sleep, **more}
        return replace(self.cluster.pipeline, **parts)

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.cluster.now += seconds
        if self.beats:
            self.cluster.beat()

    async def generate(self, node: Node, request: Request, leg: Leg) -> AsyncGenerator[Event]:
        self.asked[node.node_id] += 1
        if ill := self.ills.get(node.node_id):
            raise ill
        async for event in self.cluster.generate(node, request, leg):
            yield event
