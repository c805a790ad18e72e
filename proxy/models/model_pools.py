"""Groups live nodes into pools by model, and picks the pool of a request. Pure.

Nodes of equal model name and fingerprint are one pool, and only they work together. While a
model is upgraded node by node, two pools may have the same name: each request is then assigned
to one of them for good, in proportion to their decode nodes.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeVar

from discovery.kinds import Model
from discovery.node import Node
from discovery.registration import Role, State
from discovery.registry import Registry
from proxy.health.health import Health

Value = TypeVar("Value")
HASH_BYTES = 8


@dataclass(frozen=True, slots=True)
class ConfiguredNames:
    """Model names of the proxy's settings: `models` are the nodes' names of the model.

    `client_names` are those that clients use for it, instead of the names its nodes register.
    """

    models: frozenset[str]
    client_names: tuple[str, ...]

    def match(self, node: Node) -> bool:
        """Whether the settings are about this node; they match one that registers no model."""
        return not node.names or not self.models.isdisjoint(node.names)


@dataclass(frozen=True, slots=True)
class ModelPool:
    """The nodes of one model: its `names`, own name first, and `digests` of its text files.

    `adapters` are the LoRA adapters that all of them have loaded. `own`: the proxy's settings
    are about it. `foreign`: all its nodes are vLLM's. Of several digests, the one that most
    nodes register comes first.
    """

    key: Model
    names: tuple[str, ...]
    digests: tuple[str, ...] = ()
    own: bool = False
    foreign: bool = False
    adapters: tuple[str, ...] = ()

    @property
    def all_names(self) -> tuple[str, ...]:
        """All that clients may ask for here: the model by its names, and its adapters."""
        return tuple(dict.fromkeys((*self.names, *self.adapters)))


def model_pools(nodes: Iterable[Node], configured: ConfiguredNames) -> dict[Model, ModelPool]:
    """The pools of all nodes that take work, sorted by model."""
    found = dict[Model, list[Node]]()
    for node in nodes:
        if node.registration.state is State.READY:
            found.setdefault(node.model, []).append(node)
    return {
        key: _pool(key, nodes_of, configured)
        for key, nodes_of in sorted_by_model(found).items()
    }


def sorted_by_model(by_model: Mapping[Model, Value]) -> dict[Model, Value]:
    """Sorted by name and fingerprint; missing ones come first."""
    keys = sorted(by_model, key=lambda key: (key[0] or "", key[1] or ""))
    return {key: by_model[key] for key in keys}


def _pool(key: Model, nodes: Sequence[Node], configured: ConfiguredNames) -> ModelPool:
    ours = any(configured.match(node) for node in nodes)
    registrations = [one.registration for one in nodes]
    named = Counter(one.text_digest for one in registrations if one.text_digest)
    digests = tuple(sorted(named, key=lambda one: (-named[one], one)))
    every = [name for one in registrations for name in (one.model, *one.aliases) if name]
    names = configured.client_names if ours else tuple(dict.fromkeys(every))
    common = set[str].intersection(*(set(one.adapters) for one in registrations))
    adapters = tuple(one for one in registrations[0].adapters if one in common)
    return ModelPool(key, names, digests, ours, not any(node.ours for node in nodes), adapters)


@dataclass(slots=True)
class ContextLimit:
    """The smallest max_model_len of the decode nodes that may get a request.

    It is needed for each request, so it is computed again only when the nodes have changed.
    Nodes without a partner do not count while others have one. Without a decode node, prefill
    nodes count, since they can pool.
    """

    registry: Registry
    model: Model | None = None
    _nodes: Sequence[Node] = ()
    _shortest: int | None = None

    def shortest(self, *, now: float) -> int | None:
        """The most tokens of a prompt with its answer; None if no node registers a limit."""
        nodes = self._of(Role.DECODE, now) or self._of(Role.PREFILL, now)
        if nodes is not self._nodes:
            lengths = (node.registration.max_model_len for node in nodes)
            self._shortest = min((one for one in lengths if one is not None), default=None)
            self._nodes = nodes
        return self._shortest

    def _of(self, role: Role, now: float) -> Sequence[Node]:
        paired = self.registry.paired(role, now=now, model=self.model)
        return paired or self.registry.nodes(role, now=now, model=self.model)


def capacity(
    registry: Registry, health: Health, model: Model, *, now: float, generates: bool
) -> tuple[int, int]:
    """(level, nodes) of a pool, to be compared; nodes with an open breaker do not count.

    Level 2: nodes of both roles; 1: only nodes of the role it needs; 0: none of those.
    """
    nodes = (registry.nodes(role, now=now, model=model) for role in Role)
    prefill, decode = (len(health.healthy(one, now=now)) for one in nodes)
    needed, other = (decode, prefill) if generates else (prefill, decode)
    if needed:
        return (2 if other or not generates else 1), needed
    return (0, 0) if generates else (min(other, 1), other)


def pick_model(request_id: str, shares: Sequence[tuple[Model, int]]) -> Model:
    """One of the models, in proportion to its share; always the same for one request id.

    Weighted rendezvous hashing: a share that grows takes requests from the others, and moves
    none between them (Schindelhauer and Schomaker, 2005).
    """
    return max(shares, key=lambda share: _score(request_id, *share))[0]


def _score(request_id: str, model: Model, weight: int) -> float:
    name = repr((request_id, model)).encode()
    number = int.from_bytes(blake2b(name, digest_size=HASH_BYTES).digest())
    chance = (number + 0.5) / 2 ** (8 * HASH_BYTES)  # never 0 nor 1
    return weight / -math.log(min(chance, 1 - 1e-16))
