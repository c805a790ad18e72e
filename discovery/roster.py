"""Nodes sorted by id, with a cache of the live ones."""

from bisect import bisect_left
from dataclasses import dataclass, field
from math import inf
from typing import Generic, Protocol, TypeVar


class Member(Protocol):
    """What a roster needs to know of a node."""

    @property
    def node_id(self) -> str:
        """The sort key."""

    @property
    def heard_at(self) -> float:
        """When it was last heard of."""


M = TypeVar("M", bound=Member)


@dataclass(slots=True)
class Roster(Generic[M]):
    """One member for each address. A heartbeat costs a search, not a sort of all members.

    Silent members are searched for only if there may be one: no member was last heard of before
    `_since`.
    """

    _keys: list[tuple[str, str]] = field(default_factory=list)
    _members: list[M] = field(default_factory=list)
    _since: float = inf
    _told: tuple[M, ...] | None = None

    def __len__(self) -> int:
        """How many members there are, silent or not."""
        return len(self._members)

    @property
    def first(self) -> M:
        """The first member in order; there must be one."""
        return self._members[0]

    def put(self, address: str, member: M) -> None:
        """Add a member; drop any earlier one at this address first."""
        key = member.node_id, address
        at = bisect_left(self._keys, key)
        self._keys.insert(at, key)
        self._members.insert(at, member)
        self._since, self._told = min(self._since, member.heard_at), None

    def drop(self, address: str, member: M) -> None:
        """Remove a member, if it is here."""
        key = member.node_id, address
        at = bisect_left(self._keys, key)
        if at < len(self._keys) and self._keys[at] == key:
            del self._keys[at], self._members[at]
            self._told = None

    def living(self, since: float) -> tuple[M, ...]:
        """The members heard of at `since` or later."""
        if self._since < since:
            self._since = min((one.heard_at for one in self._members), default=inf)
        if self._since < since:
            return tuple(one for one in self._members if one.heard_at >= since)
        if self._told is None:
            self._told = tuple(self._members)
        return self._told
