"""Limits on running and queued requests, and on rates: of the proxy, of keys, of nodes."""

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from engine.request import LARGEST_TOKEN

QUEUED = 1024
NOBODY = "-"
Amount = Annotated[int, Meta(ge=1, le=LARGEST_TOKEN)]
QueueLength = Annotated[int, Meta(ge=0, le=LARGEST_TOKEN)]
Weight = Annotated[float, Meta(ge=0.001, le=1000)]


class LoadLimit(NamedTuple):
    """The most choices and tokens that may run at once; None: any number."""

    requests: int | None = None
    tokens: int | None = None

    def times(self, nodes: int) -> "LoadLimit":
        """The limit of this many nodes together; without any node: any number."""
        return LoadLimit(_times(self.requests, nodes), _times(self.tokens, nodes))


UNLIMITED = LoadLimit()
Auto = Literal["auto"]


class NodeLimit(NamedTuple):
    """The most that may run at one decode node; auto: as many choices as it has seats.

    `seats`, of one node or of several, is None if a node does not say how many it has.
    """

    requests: int | Auto | None = None
    tokens: int | None = None

    def of(self, nodes: int, seats: int | None) -> LoadLimit:
        """The limit of this many nodes together; without any node: any number."""
        if self.requests == "auto":
            return LoadLimit(seats, _times(self.tokens, nodes))
        return LoadLimit(self.requests, self.tokens).times(nodes)


UNLIMITED_NODE = NodeLimit()


class KeyLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The limits of one API key; None: no limit.

    Running requests are counted by choices, those of a minute by calls; tokens are those of
    prompts and answers together. In the queue each key has a fair share by its `weight`.
    `min_priority`: a smaller (more urgent) priority of a request is raised to it.
    """

    max_requests: Amount | None = None
    max_tokens: Amount | None = None
    max_queued: QueueLength | None = None
    requests_per_minute: Amount | None = None
    tokens_per_minute: Amount | None = None
    weight: Weight = 1.0
    min_priority: int | None = None

    @property
    def at_work(self) -> LoadLimit:
        """The limit of what may run at once."""
        return LoadLimit(self.max_requests, self.max_tokens)


@dataclass(frozen=True, slots=True)
class ApiCaller:
    """The name of the caller's API key, never the key itself. `limits` None: the proxy's."""

    name: str = NOBODY
    limits: KeyLimits | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """Limits of the whole proxy, and of each node; None: no limit.

    A node's limit times the number of a model's nodes limits the model: `node` its answers with
    their prompts, `prefill_node` its prompts before their first token, `node_queued` its part
    of the queue. Which node gets a request is not decided here: see proxy/routing/capacity.py.
    """

    all: LoadLimit = UNLIMITED
    node: NodeLimit = UNLIMITED_NODE
    prefill_node: LoadLimit = UNLIMITED
    queued: int = QUEUED
    node_queued: int | None = None

    @property
    def of_nodes(self) -> bool:
        """Whether any limit depends on the number of nodes."""
        limits = self.node, self.prefill_node, self.node_queued
        return limits != (UNLIMITED_NODE, UNLIMITED, None)

    @property
    def none(self) -> bool:
        """Whether no request ever waits."""
        limits = self.all, self.node, self.prefill_node
        return limits == (UNLIMITED, UNLIMITED_NODE, UNLIMITED)

    def queued_for(self, nodes: int) -> int | None:
        """How many requests may wait for this many nodes; None: no such limit."""
        return _times(self.node_queued, nodes)


def _times(of_each: int | None, nodes: int) -> int | None:
    return of_each * nodes if of_each is not None and nodes else None
