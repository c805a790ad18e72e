"""The models that live nodes serve, and which of one name a request goes to. Pure.

Nodes of equal model name and equal fingerprint are one pool, and only they work together. Two
pools may go by one name, while a model is upgraded node by node: then each request is given to
one of them for good, and they share requests out by the decode nodes that they have.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeVar

from discovery.kinds import Model
from discovery.registration import Role, State
from discovery.registry import Node, Registry
from proxy.health.health import Health

Value = TypeVar("Value")
DRAWN = 8  # bytes of a hash, to draw with


@dataclass(frozen=True, slots=True)
class OwnNames:
    """What the proxy's own settings say: `models` are what its nodes call the model.

    `told` are the names that clients have for it, instead of all that its nodes say.
    """

    models: frozenset[str]
    told: tuple[str, ...]

    def mean(self, node: Node) -> bool:
        """Whether they are about this node; who does not say what it serves is believed."""
        return not node.names or not self.models.isdisjoint(node.names)


@dataclass(frozen=True, slots=True)
class Pool:
    """One model: `names` of which the first is its own, the `digests` of its text files.

    `own`: the proxy's settings are about it. `foreign`: none of its nodes is ours. Of several
    digests, the one that most nodes name comes first.
    """

    key: Model
    names: tuple[str, ...]
    digests: tuple[str, ...] = ()
    own: bool = False
    foreign: bool = False


def pools_of(nodes: Iterable[Node], own: OwnNames) -> dict[Model, Pool]:
    """Of all nodes that take work, in the order of their models."""
    found = dict[Model, list[Node]]()
    for node in nodes:
        if node.registration.state is State.READY:
            found.setdefault(node.model, []).append(node)
    return {key: _pool(key, nodes_of, own) for key, nodes_of in in_order(found).items()}


def in_order(by_model: Mapping[Model, Value]) -> dict[Model, Value]:
    """By name and fingerprint; those that do not say come first."""
    keys = sorted(by_model, key=lambda key: (key[0] or "", key[1] or ""))
    return {key: by_model[key] for key in keys}


def _pool(key: Model, nodes: Sequence[Node], own: OwnNames) -> Pool:
    ours = any(own.mean(node) for node in nodes)
    said = [one.registration for one in nodes]
    named = Counter(one.text_digest for one in said if one.text_digest)
    digests = tuple(sorted(named, key=lambda one: (-named[one], one)))
    every = [name for one in said for name in (one.model, *one.aliases) if name]
    names = own.told if ours else tuple(dict.fromkeys(every))
    return Pool(key, names, digests, ours, not any(node.ours for node in nodes))


@dataclass(slots=True)
class Context:
    """What every decode node that may get a request has room for; asked with every request, so
    nodes are looked through only when they are others.

    Those without a partner get none while others have one. Where there is no decode node,
    prefill nodes still pool.
    """

    registry: Registry
    model: Model | None = None
    _nodes: Sequence[Node] = ()
    _shortest: int | None = None

    def shortest(self, *, now: float) -> int | None:
        """Tokens of a prompt and its answer; None while nobody says."""
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
    """How well a pool can serve, and with how many nodes: to be compared, the larger first.

    Nodes that are left alone for their failures do not count.

    2: both kinds of node are there; 1: those that cannot be done without; 0: not even they.
    """
    nodes = (registry.nodes(role, now=now, model=model) for role in Role)
    prefill, decode = (len(health.healthy(one, now=now)) for one in nodes)
    needed, other = (decode, prefill) if generates else (prefill, decode)
    if needed:
        return (2 if other or not generates else 1), needed
    return (0, 0) if generates else (min(other, 1), other)


def drawn(request_id: str, shares: Sequence[tuple[Model, int]]) -> Model:
    """One of the models, as often as its share is of all; for one request always the same.

    Weighted rendezvous hashing: a share that grows takes requests from the others, and moves
    none between them (Schindelhauer and Schomaker, 2005).
    """
    return max(shares, key=lambda share: _score(request_id, *share))[0]


def _score(request_id: str, model: Model, weight: int) -> float:
    name = repr((request_id, model)).encode()
    number = int.from_bytes(blake2b(name, digest_size=DRAWN).digest())
    chance = (number + 0.5) / 2 ** (8 * DRAWN)  # never 0 nor 1
    return weight / -math.log(min(chance, 1 - 1e-16))
