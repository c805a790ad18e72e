"""Schemas that list all their values, and those that no value fits. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from api.tools.parsing.json_types import (
    TYPES,
    accepted_types,
    possible_types,
    resolve_reference,
    types_of_value,
)

Values = Sequence[str | None]
STRING_OR_NULL = TYPES["string"] | TYPES["null"]


def listed_values(schema: object, root: Mapping[str, Any]) -> Values | None:
    """All values of a schema within `root`, which are strings or null; None: it does not list
    them, or lists others.
    """
    found = [*dict.fromkeys(one for one in values_of(schema, root) or () if _is_text(one))]
    return found if found and accepted_types(schema, root) <= STRING_OR_NULL else None


def _is_text(value: object) -> bool:
    return value is None or isinstance(value, str)


def is_possible(schema: object, root: Mapping[str, Any]) -> bool:
    """Whether a value may fit a schema within `root`, as far as types, bounds and lists say."""
    return bool(possible_types(schema, root)) and values_of(schema, root) != []


def values_of(schema: object, root: Mapping[str, Any]) -> list[Any] | None:
    """All values that a schema lists, in all its parts; None: it does not list them."""
    try:
        return _Lists(root).of(schema)
    except RecursionError:
        return None


@dataclass(slots=True)
class _Lists:
    """Schemas within `root`. Each reference is followed once: they may lead in circles."""

    root: Mapping[str, Any]
    _referenced: dict[str, list[Any] | None] = field(default_factory=dict)

    def of(self, schema: object) -> list[Any] | None:
        if not isinstance(schema, Mapping):
            return None
        lists = [one for one in self._by_keyword(schema) if one is not None]
        if not lists:
            return None
        types = possible_types(schema, self.root)
        in_all = [one for one in lists[0] if all(one in other for other in lists)]
        fitting = [one for one in in_all if types_of_value(one) & types]
        for several in ("anyOf", "oneOf"):
            if isinstance(ways := schema.get(several), list):
                fitting = self._fitting_one(ways, fitting)
        return fitting

    def _fitting_one(self, ways: Sequence[object], values: list[Any]) -> list[Any]:
        """Those values that fit one of the ways."""
        found = [(possible_types(one, self.root), self.of(one)) for one in ways]
        return [
            value
            for value in values
            if any(
                types_of_value(value) & types and (listed is None or value in listed)
                for types, listed in found
            )
        ]

    def _by_keyword(self, schema: Mapping[str, Any]) -> Iterator[list[Any] | None]:
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        values = [None] if schema.get("type") == "null" else values
        if isinstance(values, list):
            yield values
        if isinstance(reference := schema.get("$ref"), str):
            yield self._at(schema, reference)
        if isinstance(parts := schema.get("allOf"), list):
            yield from map(self.of, parts)
        for several in ("anyOf", "oneOf"):
            if isinstance(ways := schema.get(several), list):
                yield self._in_any(ways)

    def _in_any(self, ways: Sequence[object]) -> list[Any] | None:
        found = [self.of(one) for one in ways]
        known = [one for one in found if one is not None]
        return [*chain(*known)] if found and len(known) == len(found) else None

    def _at(self, schema: Mapping[str, Any], reference: str) -> list[Any] | None:
        if reference not in self._referenced:
            self._referenced[reference] = None
            self._referenced[reference] = self.of(resolve_reference(schema, self.root))
        return self._referenced[reference]
