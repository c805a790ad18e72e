"""Turns a `oneOf` whose ways exclude each other by a value into an `anyOf`. Pure.

llguidance enforces a `oneOf` only if it sees itself that no two ways fit, and does not see that
1 is not 2. Pydantic and zod write such ways for unions that a number tells apart.
"""

import re
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from engine.grammars.schemas import NAMED, NESTED

Tags = Mapping[str | None, frozenset[object]]
"""The only values of each required member, by its name, or, by None, of the value itself."""
NO_TAGS: Tags = {}
HERE = "#/"
INDEX = re.compile(r"[0-9]{1,9}")


def with_exclusive_ways(schema: Any, root: Any = None) -> Any:  # noqa: ANN401  JSON of any shape
    """The same schema, or list of schemas; references are looked up in `root`, by default the
    schema itself.
    """
    root = schema if root is None else root
    if isinstance(schema, list):
        return [with_exclusive_ways(one, root) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    exclusive = "anyOf" not in schema and _exclude(schema.get("oneOf"), root)
    return {
        "anyOf" if exclusive and key == "oneOf" else key: _within(key, value, root)
        for key, value in schema.items()
    }


def _within(key: str, value: Any, root: Any) -> Any:  # noqa: ANN401  JSON of any shape
    if key in NAMED and isinstance(value, Mapping):
        return {name: with_exclusive_ways(one, root) for name, one in value.items()}
    return with_exclusive_ways(value, root) if key in NESTED else value


def _exclude(ways: object, root: object) -> bool:
    """Whether one tag that all of them have tells any two apart."""
    if not isinstance(ways, list) or not ways:
        return False
    tags = [_tags(_target(one, root)) for one in ways]
    shared = set(tags[0]).intersection(*tags[1:])
    return any(_apart([one[key] for one in tags]) for key in shared)


def _apart(values: Sequence[frozenset[object]]) -> bool:
    return len(frozenset().union(*values)) == sum(map(len, values))


def _tags(way: object) -> Tags:
    if not isinstance(way, Mapping):
        return NO_TAGS
    found: dict[str | None, frozenset[object]] = {}
    if (own := _listed(way)) is not None:
        found[None] = own
    members, required = way.get("properties"), way.get("required")
    if way.get("type") == "object" and isinstance(members, Mapping):
        for name in required if isinstance(required, list) else ():
            if isinstance(name, str) and (one := _listed(members.get(name))) is not None:
                found[name] = one
    return found


def _listed(schema: object) -> frozenset[object] | None:
    """The plain values that it lists, with true apart from 1; None if there is no such list."""
    if not isinstance(schema, Mapping):
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list) or any(isinstance(one, (list, dict)) for one in values):
        return None
    return frozenset((isinstance(one, bool), one) for one in values)


def _target(way: object, root: object) -> object:
    """What a plain reference means, one step far."""
    if not isinstance(way, Mapping) or len(way) != 1:
        return way
    path = way.get("$ref")
    if not isinstance(path, str) or not path.startswith(HERE):
        return way
    return reduce(member, path.removeprefix(HERE).split("/"), root)


def member(found: object, name: str) -> object:
    """What a step of a reference leads to; None: nothing."""
    if isinstance(found, list):
        return found[int(name)] if INDEX.fullmatch(name) and int(name) < len(found) else None
    return found.get(name) if isinstance(found, Mapping) else None
