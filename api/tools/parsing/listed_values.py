"""Schemas that list all their values, which are strings or null. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from api.tools.parsing.json_types import TYPES, accepted_types, resolve_reference

Values = Sequence[str | None]
STRING_OR_NULL = TYPES["string"] | TYPES["null"]


def listed_values(schema: object, root: Mapping[str, Any]) -> Values | None:
    """All values of a schema within `root`; None: it does not list them, or lists others."""
    try:
        return _Lists(root).of(schema)
    except RecursionError:
        return None


@dataclass(slots=True)
class _Lists:
    """Schemas within `root`. Each reference is followed once: they may lead in circles."""

    root: Mapping[str, Any]
    _referenced: dict[str, Values | None] = field(default_factory=dict)

    def of(self, schema: object) -> Values | None:
        if not isinstance(schema, Mapping):
            return None
        lists = [one for one in self._by_keyword(schema) if one is not None]
        if not lists:
            return None
        types = accepted_types(schema, self.root)
        in_all = [one for one in lists[0] if all(one in other for other in lists)]
        fitting = [one for one in in_all if type(one) in types]
        return fitting if fitting and types <= STRING_OR_NULL else None

    def _by_keyword(self, schema: Mapping[str, Any]) -> Iterator[Values | None]:
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

    def _in_any(self, ways: Sequence[object]) -> Values | None:
        found = [self.of(one) for one in ways]
        known = [one for one in found if one is not None]
        return [*dict.fromkeys(chain(*known))] if found and len(known) == len(found) else None

    def _at(self, schema: Mapping[str, Any], reference: str) -> Values | None:
        if reference not in self._referenced:
            self._referenced[reference] = None
            self._referenced[reference] = self.of(resolve_reference(schema, self.root))
        return self._referenced[reference]
