"""The ways in which an object fits a schema with `anyOf`, `oneOf`, `allOf` and `$ref`. Pure."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import combinations, count
from typing import Any

from api.tools.parsing.json_types import (
    SEVERAL,
    STRING_ONLY,
    TYPES,
    accepted_types,
    possible_types,
    resolve_reference,
)
from api.tools.parsing.listed_values import is_possible, values_of

Schema = Mapping[str, Any]
ELSEWHERE = frozenset({*SEVERAL, "$ref", "allOf"})
CLOSED = {"additionalProperties": False}
NUMBERS: Mapping[str, Callable[[Iterable[int]], int]] = {
    "minProperties": max,
    "maxProperties": min,
    "minItems": max,
    "maxItems": min,
}
MOST_WAYS, MOST_VISITS = 64, 1_000


class TooManyWays(Exception):
    """A schema has too many ways, or too many schemas in them."""


class Overlapping(Exception):
    """More than one way of a `oneOf` may fit, and it is not known how to write just one."""


def properties_of(schema: Schema) -> Mapping[str, object]:
    """The schema's properties by name; empty where they are not an object."""
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def required_of(schema: Schema) -> Collection[str]:
    """The names of required properties."""
    found = schema.get("required")
    return {one for one in found if isinstance(one, str)} if isinstance(found, list) else ()


def ways_of(root: Schema, *, apart: bool = True) -> Sequence[Schema]:
    """Schemas of objects without those keywords at their top: an object that fits one of them
    fits `root`, if it has no members but those that are named. `apart`: no object may fit two
    ways of a `oneOf`. Raises TooManyWays or Overlapping.
    """
    return _Ways(root, apart).of(root)


@dataclass(frozen=True, slots=True)
class _Ways:
    root: Schema
    apart: bool
    visits: Iterator[int] = field(default_factory=partial(count, 1))

    def of(self, schema: object, path: Collection[str] = ()) -> Sequence[Schema]:
        """`path`: the references that led here; they may lead in circles."""
        if next(self.visits) > MOST_VISITS:
            raise TooManyWays
        if not isinstance(schema, Mapping):
            return [] if schema is False else [{}]
        own: Schema = {key: one for key, one in schema.items() if key not in ELSEWHERE}
        first: Sequence[Schema] = [own]
        ways = reduce(self._all, self._parts(schema, path), first)
        return [one for one in ways if dict in accepted_types(one, self.root)]

    def _parts(self, schema: Schema, path: Collection[str]) -> Iterator[Sequence[Schema]]:
        """The ways of each keyword, one of which an object has to fit."""
        reference, parts = schema.get("$ref"), schema.get("allOf")
        if isinstance(reference, str) and reference not in path:
            target = resolve_reference(schema, self.root)
            yield [{}] if target is schema else self.of(target, (*path, reference))
        for part in parts if isinstance(parts, list) else ():
            yield self.of(part, path)
        for several in SEVERAL:
            if isinstance(found := schema.get(several), list):
                if len(found) > MOST_WAYS:
                    raise TooManyWays
                options = [self.of(one, path) for one in found]
                if self.apart and several == "oneOf" and not self.exclude(options):
                    raise Overlapping
                yield [way for option in options for way in option]

    def _all(self, ways: Sequence[Schema], others: Sequence[Schema]) -> Sequence[Schema]:
        """Each of the ways with each of the others, as far as an object may fit both."""
        if len(ways) * len(others) > MOST_WAYS:
            raise TooManyWays
        found = (both(one, other) for one in ways for other in others)
        return [_without_false(one) for one in found if _is_possible(one)]

    def exclude(self, options: Iterable[Sequence[Schema]]) -> bool:
        """Whether no object fits two of these options."""
        pairs = combinations(options, 2)
        return all(self._disjoint(one, other) for a, b in pairs for one in a for other in b)

    def _disjoint(self, one: Schema, other: Schema) -> bool:
        """Whether a member that is required fits only one of them."""
        return any(
            self._differ(_member(one, key), _member(other, key))
            for key in {*required_of(one), *required_of(other)}
        )

    def _differ(self, one: object, other: object) -> bool:
        return not is_possible({"allOf": [one, other]}, self.root)


def overlap(schemas: Sequence[Schema], root: Schema) -> bool:
    """Whether a value may fit two of these schemas, as far as can be seen, if its objects have
    no members but those that are named. Two that describe texts without listing them may differ
    in what is not enforced. Raises TooManyWays.
    """
    if len(schemas) > MOST_WAYS:
        raise TooManyWays
    options = [_Option.of(one, root) for one in schemas]
    return any(one.overlaps(other, root) for one, other in combinations(options, 2))


@dataclass(frozen=True, slots=True)
class _Option:
    """One of several schemas: what it lists, and the ways in which an object fits it."""

    schema: Schema
    listed: Sequence[Any] | None
    ways: Sequence[Schema]
    closed: Sequence[Schema]

    @classmethod
    def of(cls, schema: Schema, root: Schema) -> "_Option":
        """Raises TooManyWays."""
        ways = _Ways(root, apart=False).of(schema)
        return cls(schema, values_of(schema, root), ways, _closed(ways))

    def overlaps(self, other: "_Option", root: Schema) -> bool:
        """Whether a value may fit both."""
        shared = {"allOf": [self.schema, other.schema]}
        types = possible_types(shared, root)
        free = types == STRING_ONLY and not self.listed and not other.listed
        if free or not is_possible(shared, root):
            return False
        pairs = [self.closed, other.ways], [self.ways, other.closed]
        excluded = map(_Ways(root, apart=False).exclude, pairs)
        return types != TYPES["object"] or not all(excluded)


def _closed(ways: Iterable[Schema]) -> Sequence[Schema]:
    """The same ways of objects, as they are written: with no members but those with names."""
    named = [(way, [*properties_of(way), *required_of(way)]) for way in ways]
    members = [{key: _member(way, key) for key in names} for way, names in named]
    return [
        {**way, "properties": one, **CLOSED} if one else way
        for (way, _), one in zip(named, members, strict=True)
    ]


def possible(way: Schema, root: Schema) -> Schema | None:
    """The same way without members that no value within `root` fits; None: one of them is
    required.
    """
    members = properties_of(way)
    gone = dict.fromkeys(key for key, one in members.items() if not is_possible(one, root))
    more = is_possible(way.get("additionalProperties", True), root)
    others = {} if more and (not gone or len(gone) < len(members)) else CLOSED
    kept = {**way, "properties": {**members, **dict.fromkeys(gone, False)}, **others}
    if not _is_possible(kept):
        return None
    return _without_false(kept) if gone or others else way


def both(one: Schema, other: Schema) -> Schema:
    """A schema of objects and lists that fit two. Of keywords that are not about members or
    items, the second's count. A member that cannot be is False.
    """
    keys = [*dict.fromkeys([*properties_of(one), *properties_of(other)])]
    members = {key: conjoined(_member(one, key), _member(other, key)) for key in keys}
    needed = [*dict.fromkeys([*_listed(one), *_listed(other)])]
    joined: dict[str, Any] = {"properties": members} if members else {}
    if needed:
        joined["required"] = needed
    for key, choose in NUMBERS.items():
        if numbers := [x[key] for x in (one, other) if isinstance(x.get(key), int)]:
            joined[key] = choose(numbers)
    if "items" in one and "items" in other:
        joined["items"] = conjoined(one["items"], other["items"])
    more = [x["additionalProperties"] for x in (one, other) if "additionalProperties" in x]
    if more:
        joined["additionalProperties"] = conjoined(more[0], more[-1])
    return {**one, **other, **joined}


def conjoined(one: object, other: object) -> object:
    """A schema that accepts what both accept."""
    if one is False or other is False:
        return False
    if not isinstance(one, Mapping) or not one or one == other:
        return other
    if not isinstance(other, Mapping) or not other:
        return one
    clash = any(one[key] != other[key] for key in one.keys() & other.keys())
    if clash or not ELSEWHERE.isdisjoint({*one, *other}):
        return {"allOf": [one, other]}
    return {**one, **other}


def _listed(schema: Schema) -> Sequence[str]:
    found = schema.get("required")
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []


def _member(schema: Schema, key: str) -> object:
    """The schema of a member, whether it is named or not."""
    return properties_of(schema).get(key, schema.get("additionalProperties", True))


def _is_possible(schema: Schema) -> bool:
    return all(_member(schema, key) is not False for key in required_of(schema))


def _without_false(schema: Schema) -> Schema:
    """The schema without members that cannot be."""
    members = {key: one for key, one in properties_of(schema).items() if one is not False}
    return {**schema, "properties": members} if "properties" in schema else schema
