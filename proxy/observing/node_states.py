"""A gauge of nodes by model, role and state: how many take work, and what keeps the others."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from discovery.node import Node
from discovery.registration import Role, State
from proxy.health.breaker import BreakerState
from proxy.health.health import Health

MISFIT, BREAKER = "misfit", "breaker_"
STATES = (
    *State,
    MISFIT,
    *(BREAKER + one for one in (BreakerState.OPEN, BreakerState.HALF_OPEN)),
)


@dataclass(frozen=True, slots=True, eq=False)
class NodeStates(Collector):
    """Read when Prometheus scrapes; `pdserve status` prints the same state of each node.

    A model of which any node is known has all roles and states, zeros too: what is not there
    can be asked for.
    """

    health: Health
    prefix: str
    clock: Callable[[], float] = time.monotonic

    def collect(self) -> Iterator[Metric]:
        """One gauge."""
        now, nodes = self.clock(), self.health.registry.all()
        found = Counter((_model(node), node.role, self._state(node, now)) for node in nodes)
        labels = ["model", "role", "state"]
        states = GaugeMetricFamily(
            self.prefix + "nodes_by_state", "Known nodes by state", labels=labels
        )
        for model, role, state in product(sorted({*map(_model, nodes)}), Role, STATES):
            count = found[model, role, state]
            states.add_metric([model, role.name.lower(), state], count)
        yield states

    def _state(self, node: Node, now: float) -> str:
        """What keeps it from work goes before what it says itself."""
        if self.health.registry.misfit(node):
            return MISFIT
        breaker = self.health.state(node, now=now)
        if breaker is not BreakerState.CLOSED:
            return BREAKER + breaker
        return node.registration.state


def _model(node: Node) -> str:
    return node.registration.model or ""
