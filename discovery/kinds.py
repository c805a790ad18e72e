"""Groups compatible nodes by kind: even a thousand nodes are of only a few kinds."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from discovery.registration import Registration, Role
from discovery.roster import Member, Roster

MOST_COMPARED = 4096
Model = tuple[str | None, str | None]
"""What a node serves: its model's first name, and its fingerprint."""
Kind = tuple[Model, bool, str | None, tuple[Any, ...] | None]
"""Model, whether a pdserve node, connector, KV layout: nodes of one kind fit the same nodes."""


class PairableNode(Member, Protocol):
    """What must be known of a node to find nodes that can exchange KV with it."""

    @property
    def registration(self) -> Registration:
        """Its last registration."""

    @property
    def role(self) -> Role:
        """Prefill or decode."""

    @property
    def model(self) -> Model:
        """The model that it serves."""


N = TypeVar("N", bound=PairableNode)


@dataclass(slots=True)
class Kinds(Generic[N]):
    """Nodes by kind; `fits` is called once for each pair of kinds and cached."""

    fits: Callable[[N, N], bool]
    _rosters: dict[tuple[Role, Kind], Roster[N]] = field(default_factory=dict)
    _known: dict[tuple[Kind, Kind], bool] = field(default_factory=dict)
    _kinds: dict[str, tuple[N, Kind]] = field(default_factory=dict)  # by address
    _matches: dict[tuple[Role, Kind], tuple[Roster[N], ...]] = field(default_factory=dict)

    def put(self, address: str, node: N) -> None:
        """Add a node; drop any earlier node at this address first."""
        kind = kind_of(node)
        self._kinds[address] = node, kind
        if (roster := self._rosters.get((node.role, kind))) is None:
            roster = self._rosters[node.role, kind] = Roster()
            self._matches.clear()
        roster.put(address, node)

    def drop(self, address: str, node: N) -> None:
        """Remove a node."""
        key = node.role, self._kind(node)
        self._kinds.pop(address, None)
        if roster := self._rosters.get(key):
            roster.drop(address, node)
            if not len(roster):
                del self._rosters[key]
                self._matches.clear()

    def fitting(self, node: N) -> tuple[Roster[N], ...]:
        """Nodes of the other role that fit this one; cached until the kinds change."""
        key = mine, kind = node.role, self._kind(node)
        if (found := self._matches.get(key)) is None:
            found = self._matches[key] = tuple(
                roster
                for (role, other), roster in self._rosters.items()
                if role is not mine and self._fit(kind, other, node, roster)
            )
        return found

    def paired(
        self, role: Role, model: Model | None, since: float, but: frozenset[N]
    ) -> Iterator[Roster[N]]:
        """Nodes of a role, and of a model, that fit some node heard of since then.

        Nodes in `but` do not count as partners.
        """
        for (its_role, (its_model, *_)), roster in self._rosters.items():
            if its_role is not role or model not in (None, its_model):
                continue
            others = (other.living(since) for other in self.fitting(roster.first))
            if any(living and not but.issuperset(living) for living in others):
                yield roster

    def _kind(self, node: N) -> Kind:
        known = self._kinds.get(node.registration.http_address)
        return known[1] if known and known[0] is node else kind_of(node)

    def _fit(self, kind: Kind, other: Kind, node: N, roster: Roster[N]) -> bool:
        if (found := self._known.get((kind, other))) is None:
            found = self._known[kind, other] = self.fits(roster.first, node)
            while len(self._known) > MOST_COMPARED:
                del self._known[next(iter(self._known))]
        return found


def kind_of(node: PairableNode) -> Kind:
    """The kind of a node. Its layout is flat; lists in it become tuples."""
    ours, connector = node.registration.node_id is not None, node.registration.kv_connector
    if (said := node.registration.kv_layout) is None:
        return node.model, ours, connector, None
    plain = (str, int, float, type(None))
    layout = sorted(said.items(), key=lambda entry: str(entry[0]))
    fixed = ((key, one if isinstance(one, plain) else tuple(one)) for key, one in layout)
    return node.model, ours, connector, tuple(fixed)
