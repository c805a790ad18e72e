"""A cache of `nodes without blocked nodes`: most plans need the same two results."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

MOST_KEPT = 64

One = TypeVar("One", bound=Hashable)


class _Filtered(NamedTuple, Generic[One]):
    """Holds a reference to `given`: its id is the key, and no other tuple gets it meanwhile."""

    given: tuple[One, ...]
    but: frozenset[One]
    left: tuple[One, ...]


@dataclass(slots=True)
class FilterCache(Generic[One]):
    """Returns the same object for the same tuple and an equal set."""

    _kept: dict[int, _Filtered[One]] = field(default_factory=dict)

    def without(self, given: Sequence[One], but: frozenset[One]) -> Sequence[One]:
        """The items of `given` that are not in `but`, in order."""
        if not but:
            return given
        if not isinstance(given, tuple):
            return [one for one in given if one not in but]
        known = self._kept.get(id(given))
        if known is None or known.but != but:
            left = tuple(one for one in given if one not in but)
            known = self._kept[id(given)] = _Filtered(given, but, left)
            while len(self._kept) > MOST_KEPT:
                del self._kept[next(iter(self._kept))]
        return known.left
