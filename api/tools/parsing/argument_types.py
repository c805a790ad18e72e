"""Which JSON types the arguments of functions may have, by the functions' schemas."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from api.tools.parsing.json_types import (
    ANY_TYPE,
    NO_TYPE,
    JsonTypes,
    accepted_types,
    resolve_reference,
)
from api.tools.parsing.ways import Schema, TooManyWays, properties_of, ways_of
from api.tools.tool_choice import OfferedFunctions


@dataclass(slots=True)
class ArgumentTypes:
    """The types that each argument of the functions may have; each is worked out once."""

    offered: OfferedFunctions
    _found: dict[tuple[str, str], JsonTypes] = field(default_factory=dict)
    _ways: dict[str, Sequence[Schema]] = field(default_factory=dict)

    def of(self, function: str, key: str) -> JsonTypes:
        """The types of an argument in any way that names it, or else of one that no way names;
        any, where the function is unknown.
        """
        place = function, key
        if place not in self._found:
            ways, root = self._ways_of(function), self._root(function)
            named = [properties_of(one)[key] for one in ways if key in properties_of(one)]
            others = [one.get("additionalProperties", True) for one in ways]
            schemas = named or [one for one in others if one is not False]
            found = NO_TYPE.union(*(accepted_types(one, root) for one in schemas))
            self._found[place] = found or ANY_TYPE
        return self._found[place]

    def is_strict(self, function: str) -> bool:
        """Whether a grammar holds the function's arguments to its schema, if one can."""
        return function in self.offered and bool(self.offered[function].strict)

    def properties(self, function: str) -> Mapping[str, object]:
        """The arguments that the function's schema names, with their schemas in one way."""
        return {
            key: one
            for way in self._ways_of(function)
            for key, one in properties_of(way).items()
        }

    def _ways_of(self, function: str) -> Sequence[Schema]:
        if function not in self._ways:
            root = self._root(function)
            try:
                self._ways[function] = ways_of(root, apart=False)
            except (TooManyWays, RecursionError):
                self._ways[function] = [resolve_reference(root, root)]
        return self._ways[function]

    def _root(self, function: str) -> Mapping[str, Any]:
        known = self.offered.get(function)
        return (known and known.parameters) or {}
