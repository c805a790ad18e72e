"""Explains why a node pairs with no other node: how their registrations differ."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from discovery.kinds import Kind, PairableNode, kind_of
from discovery.registration import Layout, Registration, Role

Difference = tuple[str, object, object]
"""The name of the field that differs, and both values."""
Differ = Callable[[Layout | None, Layout | None], Difference | None]
Names = frozenset[str]
FINGERPRINT = "fingerprint"
DIGEST = "blake2b:"
"""Prefix of a digest in `made_of` (engine/checkpoints/checkpoint.py)."""
MOST_TOLD = 8
NOT_TOLD = "not told"


class NamedNode(PairableNode, Protocol):
    """A PairableNode with names."""

    @property
    def names(self) -> Names:
        """All names of its model."""


N = TypeVar("N", bound=NamedNode)
Likeness = tuple[Role, Kind, Names]


@dataclass(slots=True)
class Misfits(Generic[N]):
    """All nodes by role, kind and names; nodes with the same ones pair with the same nodes."""

    differ: Differ
    _alike: dict[Likeness, dict[str, N]] = field(default_factory=dict)
    _known: dict[str, Likeness] = field(default_factory=dict)  # by address

    def put(self, address: str, node: N) -> None:
        """Add a node; drop any earlier node at this address first."""
        likeness = self._known[address] = node.role, kind_of(node), node.names
        self._alike.setdefault(likeness, {})[address] = node

    def drop(self, address: str) -> None:
        """Remove the node at this address, if there is one."""
        if (likeness := self._known.pop(address, None)) is None:
            return
        del self._alike[likeness][address]
        if not self._alike[likeness]:
            del self._alike[likeness]

    def reason(self, node: N) -> str | None:
        """Why it pairs with no node, although nodes of the other role serve the same name."""
        first = None
        for (role, _, names), nodes in self._alike.items():
            if role is not node.role and _namesakes(node.names, names):
                other = next(iter(nodes.values()))
                if (
                    found := misfit(node.registration, other.registration, self.differ)
                ) is None:
                    return None
                first = first or found
        return first


def misfit(ours: Registration, theirs: Registration, differ: Differ) -> str | None:
    """Why these two nodes cannot exchange KV; None if they can."""
    if (ours.node_id is None) is not (theirs.node_id is None):
        makes = "pdserve here and vLLM" if ours.node_id else "vLLM here and pdserve"
        return f"it is {makes} on {theirs.http_address}: KV stays with nodes of one make"
    found = _another_model(ours, theirs) or _another_connector(ours, theirs)
    if found is None and ours.kv_layout != theirs.kv_layout:
        found = differ(ours.kv_layout, theirs.kv_layout)
    if found is None:
        return None
    name, one, two = found
    why = f"{name} is {one} here and {two} on {theirs.http_address}"
    if name == FINGERPRINT and ours.made_of and theirs.made_of:
        why += f": {unlike(ours.made_of, theirs.made_of)}"
    return why


def unlike(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """The parts of two fingerprints that differ, for a message."""
    values = [(name, ours.get(name), theirs.get(name)) for name in {**ours, **theirs}]
    found = [_unlike(name, one, two) for name, one, two in values if one != two]
    return ", ".join(found[:MOST_TOLD])


def _unlike(name: str, one: str | None, two: str | None) -> str:
    """One part that differs; values are shown, digests are not."""
    digest_here, digest_there = (value and value.startswith(DIGEST) for value in (one, two))
    if digest_here and digest_there:
        return f"{name} is another one"
    if digest_here:
        return f"{name} is only here"
    if digest_there:
        return f"{name} is only there"
    return f"{name} is {one or NOT_TOLD} here and {two or NOT_TOLD} there"


def first_difference(one: Layout | None, two: Layout | None) -> Difference | None:
    """The first entry that differs; None if there is none."""
    if one is not None and two is not None:
        keys = sorted({*one, *two}, key=str)
        found = ((key, one.get(key), two.get(key)) for key in keys)
        return next((which for which in found if which[1] != which[2]), None)
    return None if one == two else ("kv_layout", one, two)


def _another_model(ours: Registration, theirs: Registration) -> Difference | None:
    if ours.model != theirs.model:
        return "model", ours.model, theirs.model
    if ours.fingerprint != theirs.fingerprint:
        return FINGERPRINT, ours.fingerprint, theirs.fingerprint
    return None


def _another_connector(ours: Registration, theirs: Registration) -> Difference | None:
    """Compare connectors; a node that registers none is assumed to have the same one."""
    one, two = ours.kv_connector, theirs.kv_connector
    return ("kv_connector", one, two) if one and two and one != two else None


def _namesakes(one: Names, other: Names) -> bool:
    """Whether they share a name; a node that registers none shares all."""
    return not (one and other) or not one.isdisjoint(other)
