"""Many without a few, made once as long as both stay the same: every plan asks for it."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

MOST_KEPT = 64

One = TypeVar("One", bound=Hashable)


class _Filtered(NamedTuple, Generic[One]):
    """Holds on to what it was made from, whose identity is its key."""

    given: tuple[One, ...]
    but: frozenset[One]
    left: tuple[One, ...]


@dataclass(slots=True)
class FilterCache(Generic[One]):
    """The same answer, and the very same object, for the very same tuple."""

    _kept: dict[int, _Filtered[One]] = field(default_factory=dict)

    def without(self, given: Sequence[One], but: frozenset[One]) -> Sequence[One]:
        """In their order."""
        if not but:
            return given
        if not isinstance(given, tuple):
            return [one for one in given if one not in but]
        known = self._kept.get(id(given))
        if known is None or known.given is not given or known.but != but:
            left = tuple(one for one in given if one not in but)
            known = self._kept[id(given)] = _Filtered(given, but, left)
            while len(self._kept) > MOST_KEPT:
                del self._kept[next(iter(self._kept))]
        return known.left
