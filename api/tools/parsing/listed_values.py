"""Schemas that list all their values, and those that no value fits. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from api.tools.parsing.json_types import (
    NO_TYPE,
    SEVERAL,
    TYPES,
    JsonTypes,
    accepted_types,
    possible_types,
    resolve_reference,
    types_of_value,
)

Values = Sequence[str | None]
ENCODER = json.JSONEncoder(sort_keys=True)
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
        found = _Lists(root).of(schema)
    except RecursionError:
        return None
    return None if found is None else [*found.values()]


Listed = Mapping[str, Any]
"""Values by their texts as JSON, each once."""


@dataclass(slots=True)
class _Choice:
    """Several schemas, one of which a value fits: what they list, and of which types the values
    of those are that do not list theirs.
    """

    listed: dict[str, Any] = field(default_factory=dict)
    types: JsonTypes = NO_TYPE
    open: bool = False

    def takes(self, key: str, value: object) -> bool:
        return key in self.listed or bool(types_of_value(value) & self.types)


@dataclass(slots=True)
class _Lists:
    """Schemas within `root`. Each reference is followed once: they may lead in circles."""

    root: Mapping[str, Any]
    _referenced: dict[str, Listed | None] = field(default_factory=dict)

    def of(self, schema: object) -> Listed | None:
        if not isinstance(schema, Mapping):
            return None
        several = [one for key in SEVERAL if isinstance(one := schema.get(key), list)]
        choices = [self._choice(ways) for ways in several if ways]
        lists = [*self._by_keyword(schema), *(one.listed for one in choices if not one.open)]
        known = [one for one in lists if one is not None]
        if not known:
            return None
        types = possible_types(schema, self.root)
        common = {
            key: one for key, one in known[0].items() if all(key in it for it in known[1:])
        }
        return {
            key: one
            for key, one in common.items()
            if types_of_value(one) & types and all(each.takes(key, one) for each in choices)
        }

    def _choice(self, ways: Iterable[object]) -> _Choice:
        choice = _Choice()
        for way in ways:
            if (listed := self.of(way)) is not None:
                choice.listed.update(listed)
            else:
                choice.open = True
                choice.types |= possible_types(way, self.root)
        return choice

    def _by_keyword(self, schema: Mapping[str, Any]) -> Iterator[Listed | None]:
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        values = [None] if schema.get("type") == "null" else values
        if isinstance(values, list):
            yield {_key(one): one for one in values}
        if isinstance(reference := schema.get("$ref"), str):
            yield self._at(schema, reference)
        if isinstance(parts := schema.get("allOf"), list):
            yield from map(self.of, parts)

    def _at(self, schema: Mapping[str, Any], reference: str) -> Listed | None:
        if reference not in self._referenced:
            self._referenced[reference] = None
            self._referenced[reference] = self.of(resolve_reference(schema, self.root))
        return self._referenced[reference]


def _key(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return ENCODER.encode(value)
