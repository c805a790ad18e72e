"""What types of value the schemas of functions take, as far as they say so plainly."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from api.tools.wishes import Offered

Kinds = frozenset[type]
TYPES: Mapping[str, Kinds] = {
    "string": frozenset({str}),
    "null": frozenset({type(None)}),
    "boolean": frozenset({bool}),
    "integer": frozenset({int}),
    "number": frozenset({int, float}),
    "array": frozenset({list}),
    "object": frozenset({dict}),
}
NONE: Kinds = frozenset()
ALL = NONE.union(*TYPES.values())
TEXT = TYPES["string"]


@dataclass(slots=True)
class ArgumentKinds:
    """Of the arguments of functions. Each is looked at once, however often it is asked for."""

    offered: Offered
    _found: dict[tuple[str, str], Kinds] = field(default_factory=dict)

    def of(self, function: str, key: str) -> Kinds:
        """All, where the function or its argument is unknown."""
        known = self.offered.get(function)
        root = (known and known.parameters) or {}
        properties = resolved(root, root).get("properties")
        if not isinstance(properties, Mapping) or key not in properties:
            return ALL
        place = function, key
        if place not in self._found:
            self._found[place] = kinds_in(properties[key], root)
        return self._found[place]


def kinds_in(schema: object, root: Mapping[str, object]) -> Kinds:
    """What a schema within `root` takes."""
    try:
        return _Schema(root).kinds(schema) or ALL
    except RecursionError:
        return ALL


@dataclass(slots=True)
class _Schema:
    """One within `root`. Each reference is followed once: they may lead in circles."""

    root: Mapping[str, object]
    _led: dict[str, Kinds] = field(default_factory=dict)

    def kinds(self, schema: object) -> Kinds:
        """What all that it says has in common."""
        if not isinstance(schema, Mapping):
            return ALL
        return ALL.intersection(*self._said(schema))

    def _said(self, schema: Mapping[str, object]) -> Iterator[Kinds]:
        if (named := schema.get("type")) is not None:
            names = named if isinstance(named, list) else [named]
            yield NONE.union(*(_named(one) for one in names))
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list):
            yield frozenset(map(type, values))
        for several in ("anyOf", "oneOf"):
            if isinstance(inner := schema.get(several), list):
                yield NONE.union(*map(self.kinds, inner))
        if isinstance(inner := schema.get("allOf"), list):
            yield from map(self.kinds, inner)
        if isinstance(reference := schema.get("$ref"), str):
            yield self._behind(reference)

    def _behind(self, reference: str) -> Kinds:
        if reference not in self._led:
            self._led[reference] = ALL
            self._led[reference] = self.kinds(self.place(reference))
        return self._led[reference]

    def place(self, reference: str) -> object:
        """Where it leads. None: there is no such place here."""
        found: object = self.root if reference.startswith("#") else None
        for step in unquote(reference).split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, Mapping) else None
        return found


def resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """What stands in the place that a schema within `root` refers to as a whole, if it does."""
    reference = schema.get("$ref")
    found = _Schema(root).place(reference) if isinstance(reference, str) else None
    return found if isinstance(found, Mapping) else schema


def _named(name: object) -> Kinds:
    """A type that nobody knows may be any."""
    return TYPES.get(name, ALL) if isinstance(name, str) else ALL
