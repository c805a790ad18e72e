"""How much may be at work and in line at once, and begin in a minute: of all, a key, a node."""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from engine.request import LARGEST_TOKEN

QUEUED = 1024
NOBODY = "-"
Amount = Annotated[int, Meta(ge=1, le=LARGEST_TOKEN)]
QueueLength = Annotated[int, Meta(ge=0, le=LARGEST_TOKEN)]
Weight = Annotated[float, Meta(ge=0.001, le=1000)]


class LoadLimit(NamedTuple):
    """Choices, and tokens, that may be at work at once; None: any number."""

    requests: int | None = None
    tokens: int | None = None

    def times(self, nodes: int) -> "LoadLimit":
        """Of so many nodes, each of which may have as much; without any: any number."""
        return LoadLimit(_times(self.requests, nodes), _times(self.tokens, nodes))


UNLIMITED = LoadLimit()


class KeyLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the owner of one key may have; None: as much as there is.

    Requests at work are counted by their choices, those of a minute by calls; tokens are those
    of prompts and answers together.
    Of those who wait, each key has a share of what becomes free that grows with its
    `weight`. `min_priority` is the most urgent that
    its requests may be; what asks for less than that number is as urgent as that.
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
        """What may be at work at once."""
        return LoadLimit(self.max_requests, self.max_tokens)


@dataclass(frozen=True, slots=True)
class ApiCaller:
    """Who asks: the name of a key, never the key itself. None: the proxy's limits for keys."""

    name: str = NOBODY
    limits: KeyLimits | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """Those of the whole proxy, and of each node behind it; None: no limit.

    A model's nodes may have as much as each of them may, times as many as there are: its decode
    nodes of answers with their prompts, its prefill nodes of prompts that wait for their first
    token, and the line of requests that wait for them. Which node gets a request is not
    decided here: see proxy/routing/capacity.py.
    """

    all: LoadLimit = UNLIMITED
    node: LoadLimit = UNLIMITED
    prefill_node: LoadLimit = UNLIMITED
    queued: int = QUEUED
    node_queued: int | None = None

    @property
    def of_nodes(self) -> bool:
        """Whether it matters how many nodes there are."""
        return (self.node, self.prefill_node, self.node_queued) != (UNLIMITED, UNLIMITED, None)

    @property
    def none(self) -> bool:
        """Whether nobody ever waits."""
        return (self.all, self.node, self.prefill_node) == (UNLIMITED, UNLIMITED, UNLIMITED)

    def queued_for(self, nodes: int) -> int | None:
        """How many may wait for so many nodes; without any: as many as in all."""
        return _times(self.node_queued, nodes)


def _times(of_each: int | None, nodes: int) -> int | None:
    return of_each * nodes if of_each is not None and nodes else None
