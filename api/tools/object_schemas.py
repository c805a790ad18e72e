"""What a schema says of an object's members: names, which are required, how many. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from api.tools.parsing.ways import MOST_WAYS, properties_of, required_of
from api.wire import WireError
from engine.grammars.schemas import NAMES, takes_any_name
from engine.grammars.structural_tags import JsonSchema, Sequential

ObjectSchema = Mapping[str, Any]
INEXPRESSIBLE = (
    *("dependentRequired", "dependentSchemas", "not", "if", "then", "else"),
    "unevaluatedProperties",
)
PATTERNS, BEGINNING = "patternProperties", re.compile(r"\^[\w-]+")
MOST_COUNTED = MOST_WAYS - 1  # optional members of which at least, or at most, one is written
PATTERNED = "tools: patternProperties have a grammar only in calls that are JSON"
UNNAMED = "tools: minProperties is higher than the number of the members that have names"


def members_of(schema: ObjectSchema) -> Mapping[str, object]:
    """The schema's properties, and what it only requires, by name."""
    named, other = properties_of(schema), schema.get("additionalProperties", True)
    needed = schema.get("required") if required_of(schema) else None
    added = [one for one in needed or () if isinstance(one, str) and one not in named]
    return {**named, **dict.fromkeys(added, other)}


def numbers_of(schema: ObjectSchema) -> tuple[int, int]:
    """The least and the greatest number of members; -1: any."""
    least, most = schema.get("minProperties"), schema.get("maxProperties")
    return least if isinstance(least, int) else 0, most if isinstance(most, int) else -1


def is_open(schema: ObjectSchema) -> bool:
    """Whether the schema names no properties and allows any."""
    return not members_of(schema) and schema.get("additionalProperties") is not False


def inexpressible(schema: ObjectSchema) -> Sequential | None:
    """The schema as JSON that has no grammar, if it says more about an object than can be
    written: a request is refused, and as it is where calls are JSON. Raises WireError for
    members without names, which only JSON has beside others, and for patterns of names.
    """
    refused = Sequential((JsonSchema(dict(schema)), JsonSchema(json_schema=False)))
    named, needed, (least, most) = members_of(schema), required_of(schema), numbers_of(schema)
    closed = schema.get("additionalProperties") is False
    if _is_patterned(schema):
        raise WireError(PATTERNED, "tools")
    ruled = any(key in schema for key in INEXPRESSIBLE)
    missing = closed and len(named) > len(properties_of(schema))
    if ruled or missing or 0 <= most < least or not takes_any_name(schema.get(NAMES, True)):
        return refused
    if is_open(schema) or (least <= len(needed) and not 0 <= most < len(named)):
        return None
    if not closed and len(named) == len(needed) < least and (most < 0 or least <= most):
        raise WireError(UNNAMED, "tools")
    one_more, others = len(needed) + 1, 0 < len(named) - len(needed) <= MOST_COUNTED
    known = least <= one_more and (most in (-1, one_more) or most >= len(named))
    return None if closed and others and known else refused


def _is_patterned(schema: ObjectSchema) -> bool:
    """Whether members that are written may be of a pattern, of which only plain beginnings are
    known not to be a name's.
    """
    found, names = schema.get(PATTERNS), members_of(schema)
    patterns = found if isinstance(found, Mapping) else {}
    plain = tuple(one[1:] for one in patterns if BEGINNING.fullmatch(one))
    unknown = len(plain) < len(patterns) or not names
    return bool(patterns) and (unknown or any(one.startswith(plain) for one in names))


def without_counts(schema: ObjectSchema) -> Sequence[ObjectSchema]:
    """Schemas that do not count members, one of which fits wherever this one does, which is
    none of those that are `inexpressible`: at least, or at most, one of the optional members.
    """
    named, needed = members_of(schema), required_of(schema)
    least, most = numbers_of(schema)
    others, one_more = [key for key in named if key not in needed], len(needed) + 1
    at_least_one, at_most_one = least == one_more, most == one_more < len(named)
    if not others or not (at_least_one or at_most_one):
        return (schema,)
    none = [] if at_least_one else [_only(schema, [], [])]
    after = (() if at_most_one else others[place:] for place in range(1, len(others) + 1))
    firsts = zip(others, after, strict=True)
    return (*none, *(_only(schema, [first], rest) for first, rest in firsts))


def _only(schema: ObjectSchema, also: Sequence[str], optional: Sequence[str]) -> ObjectSchema:
    """The same with these members required, and these optional, beside those required."""
    named, needed = members_of(schema), [*required_of(schema), *also]
    kept = {key: one for key, one in named.items() if key in needed or key in optional}
    counts = ("minProperties", "maxProperties")
    other = {key: one for key, one in schema.items() if key not in counts}
    return {**other, "properties": kept, "required": needed}
