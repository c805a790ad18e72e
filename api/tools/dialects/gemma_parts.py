"""The parts of a schema, through references and `allOf`, all of which a value fits. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from api.tools.call_formats import Schema
from api.tools.parsing.json_types import SEVERAL, resolve_reference

ELSEWHERE = ("$ref", "allOf")
Path = tuple[str, ...]
"""The references that led to a schema."""


def parts_of(
    schema: object, root: Schema, path: Path, most_repeats: int
) -> tuple[Sequence[Schema], Path] | None:
    """The parts of a schema within `root`, and the path to them; None: too deep."""
    if not isinstance(schema, Mapping):
        return None if _circles(path, most_repeats) else ([{}], path)
    target, several = resolve_reference(schema, root), schema.get("allOf")
    others = [*several] if isinstance(several, list) else []
    if target is not schema:
        path, others = (*path, schema["$ref"]), [target, *others]
    parts = list[Schema]()
    for one in filter(lambda one: isinstance(one, Mapping), others):
        if _circles(path, most_repeats):
            return None
        if (found := parts_of(one, root, path, most_repeats)) is None:
            return None
        parts, path = [*parts, *found[0]], found[1]
    return [*parts, {key: one for key, one in schema.items() if key not in ELSEWHERE}], path


@dataclass(frozen=True, slots=True)
class Ways:
    """Schemas, one of which a value has to fit; `exclusive`: and no other."""

    schemas: Sequence[Schema]
    exclusive: bool


def first_ways(parts: Sequence[Schema]) -> Ways | None:
    """The ways of the first `anyOf` or `oneOf` in these parts, with all else that they say;
    None: there is none.
    """
    for (place, part), key in product(enumerate(parts), SEVERAL):
        if isinstance(ways := part.get(key), list) and ways:
            rest = {other: one for other, one in part.items() if other != key}
            others = [*parts[:place], rest, *parts[place + 1 :]]
            return Ways([{"allOf": [*others, one]} for one in ways], key == "oneOf")
    return None


def _circles(path: Path, most_repeats: int) -> bool:
    """Whether a path leads in circles too often."""
    return len(path) - len({*path}) > most_repeats
