"""Which JSON types a schema accepts, as far as its plain keywords say so."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

JsonTypes = frozenset[type]
TYPES: Mapping[str, JsonTypes] = {
    "string": frozenset({str}),
    "null": frozenset({type(None)}),
    "boolean": frozenset({bool}),
    "integer": frozenset({int}),
    "number": frozenset({int, float}),
    "array": frozenset({list}),
    "object": frozenset({dict}),
}
NO_TYPE: JsonTypes = frozenset()
ANY_TYPE = NO_TYPE.union(*TYPES.values())
STRING_ONLY = TYPES["string"]
NUMBER = TYPES["number"]
SEVERAL = "anyOf", "oneOf"
"""One of the schemas that these list, or more, has to fit."""
BOUNDS: Mapping[tuple[str, str], JsonTypes] = {
    ("minLength", "maxLength"): STRING_ONLY,
    ("minItems", "maxItems"): TYPES["array"],
    ("minProperties", "maxProperties"): TYPES["object"],
    ("minimum", "maximum"): NUMBER,
}


def accepted_types(schema: object, root: Mapping[str, object]) -> JsonTypes:
    """The types that a schema within `root` accepts; any, if it contradicts itself."""
    return possible_types(schema, root) or ANY_TYPE


def possible_types(schema: object, root: Mapping[str, object]) -> JsonTypes:
    """The types that a schema within `root` accepts; none, if it contradicts itself."""
    try:
        return _Schema(root).types_of(schema)
    except RecursionError:
        return ANY_TYPE


def types_of_value(value: object) -> JsonTypes:
    """The types that a JSON value is of: a number without a fraction is an integer, too."""
    whole = isinstance(value, float) and value.is_integer()
    return NUMBER if whole else frozenset({type(value)})


@dataclass(slots=True)
class _Schema:
    """Schemas within `root`. Each reference is followed once: they may lead in circles."""

    root: Mapping[str, object]
    _referenced: dict[str, JsonTypes] = field(default_factory=dict)

    def types_of(self, schema: object) -> JsonTypes:
        """The types that all keywords of a schema accept."""
        if not isinstance(schema, Mapping):
            return NO_TYPE if schema is False else ANY_TYPE
        return ANY_TYPE.intersection(*self._by_keyword(schema))

    def _by_keyword(self, schema: Mapping[str, object]) -> Iterator[JsonTypes]:
        if (named := schema.get("type")) is not None:
            names = named if isinstance(named, list) else [named]
            yield NO_TYPE.union(*(_named(one) for one in names))
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list):
            yield NO_TYPE.union(*map(types_of_value, values))
        yield ANY_TYPE - _crossed(schema)
        for several in SEVERAL:
            if isinstance(inner := schema.get(several), list):
                yield NO_TYPE.union(*map(self.types_of, inner))
        if isinstance(inner := schema.get("allOf"), list):
            yield from map(self.types_of, inner)
        if isinstance(reference := schema.get("$ref"), str):
            yield self._types_at(reference)

    def _types_at(self, reference: str) -> JsonTypes:
        if reference not in self._referenced:
            self._referenced[reference] = ANY_TYPE
            self._referenced[reference] = self.types_of(self.resolve(reference))
        return self._referenced[reference]

    def resolve(self, reference: str) -> object:
        """The schema that a reference points to; None: `root` has none there."""
        found: object = self.root if reference.startswith("#") else None
        for step in unquote(reference).split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, Mapping) else None
        return found


def resolve_reference(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that a `$ref` at the top of this one points to, or else this one."""
    reference = schema.get("$ref")
    found = _Schema(root).resolve(reference) if isinstance(reference, str) else None
    return found if isinstance(found, Mapping) else schema


def _crossed(schema: Mapping[str, object]) -> JsonTypes:
    """The types of which no value is within the schema's bounds."""
    return NO_TYPE.union(
        *(
            types
            for (least, most), types in BOUNDS.items()
            if _number(schema, least, -math.inf) > _number(schema, most, math.inf)
        )
    )


def _number(schema: Mapping[str, object], key: str, usual: float) -> float:
    found = schema.get(key)
    return found if isinstance(found, int | float) else usual


def _named(name: object) -> JsonTypes:
    """An unknown type's name stands for any type."""
    return TYPES.get(name, ANY_TYPE) if isinstance(name, str) else ANY_TYPE
