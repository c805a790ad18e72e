"""Removes annotations from a JSON Schema before it is compiled as a grammar. Pure.

A `format` that JSON Schema does not define has no effect: it is an annotation (draft 2020-12,
Validation, 7.2.3). OpenAPI has `int64` and `byte`, pydantic `path` and `password`. Nor has the
`propertyNames` that zod writes for each record: names are strings.
"""

from collections.abc import Mapping
from typing import Any

DEFINED = frozenset(
    {
        *("date-time", "date", "time", "duration", "email", "idn-email", "hostname"),
        *("idn-hostname", "ipv4", "ipv6", "uri", "uri-reference", "iri", "iri-reference"),
        *("uuid", "uri-template", "json-pointer", "relative-json-pointer", "regex"),
    }
)
NAMES = "propertyNames"
TITLED = frozenset({"type", "title", "description"})
NAMED = frozenset(
    {"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"}
)
"""Keywords whose value has schemas by name."""
NESTED = frozenset(
    {
        *("additionalItems", "additionalProperties", "allOf", "anyOf", "contains", "else"),
        *("if", "items", "not", "oneOf", "prefixItems", NAMES, "then"),
        *("unevaluatedItems", "unevaluatedProperties"),
    }
)
"""Keywords whose value is a schema, or a list of schemas."""


def without_annotations(schema: Any) -> Any:  # noqa: ANN401  JSON of any shape
    """The same schema, or list of schemas; other values that look like schemas are kept."""
    if isinstance(schema, list):
        return [without_annotations(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: _within(key, value)
        for key, value in schema.items()
        if not (_is_unknown_format(key, value) or (key == NAMES and takes_any_name(value)))
    }


def takes_any_name(names: object) -> bool:
    """Whether this value of `propertyNames` allows every name."""
    if not isinstance(names, Mapping):
        return names is True
    return names.keys() <= TITLED and names.get("type", "string") == "string"


def _is_unknown_format(key: str, value: object) -> bool:
    return key == "format" and isinstance(value, str) and value not in DEFINED


def _within(key: str, value: Any) -> Any:  # noqa: ANN401  JSON of any shape
    if key in NAMED and isinstance(value, Mapping):
        return {name: without_annotations(one) for name, one in value.items()}
    return without_annotations(value) if key in NESTED else value
