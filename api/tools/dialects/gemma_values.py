"""The grammar of values in Gemma's format, which fit a schema. Pure.

Strings, lists and objects are not written as in JSON, so their schemas are followed here. No
rule of a structural tag can contain itself: a schema that does is followed a few times, and
what would be deeper is left out.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import count
from typing import Any

from api.tools.call_formats import (
    ANY_OBJECT,
    REFUSED_ONE_OF,
    TOO_LONG,
    Schema,
    argument_format,
    format_each,
    input_as_text,
    members_format,
    object_ways,
    seq,
)
from api.tools.dialects.gemma_parts import Path, first_ways, parts_of
from api.tools.object_schemas import inexpressible, members_of, without_counts
from api.tools.parsing.json_types import (
    ANY_TYPE,
    TYPES,
    JsonTypes,
    possible_types,
    types_of_value,
)
from api.tools.parsing.listed_values import values_of
from api.tools.parsing.ways import TooManyWays, both, overlap, required_of
from api.wire import WireError
from engine.grammars.structural_tags import (
    AnyText,
    ConstString,
    Either,
    Format,
    Optional,
    Regex,
    Repeated,
    Sequential,
    Star,
    Tag,
    TagsWithSeparator,
    Token,
)

ANY_KEY = "[A-Za-z_][A-Za-z0-9_]*"
BARE_KEY = re.compile(r"[^{}\[\],:<\s]+( +[^{}\[\],:<\s]+)*")
WHOLE = r"-?(0|[1-9][0-9]{0,19})"
ATOMS: Mapping[type, str] = {
    int: WHOLE,
    float: rf"{WHOLE}(\.[0-9]{{1,20}})?",
    bool: "true|false",
    type(None): "null",
}
NO_VALUE = "tools: no arguments of a function fit its schema, or they are nested too deeply"
UNBOUNDED = -1
BOUNDS_OF_NUMBERS = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
)
ANYTHING = "*"  # stands in a path for a list of any items
MOST_REPEATS = 2  # as far as the grammar does not become too long by them
MOST_VISITS = 4_000
DEEPEST_ANYTHING = 2  # lists and objects in an argument that no schema describes


@dataclass(frozen=True, slots=True)
class ValueForm:
    """Values of schemas within `root`; strings stand between two of the `quote`. A schema may
    come back `most_repeats` times on the way to a value. Only objects that are `nested` may
    have a key more than once. `visits` counts schemas: there are many ways through some.
    """

    quote: str
    root: Schema
    most_repeats: int
    nested: bool = False
    visits: Iterator[int] = field(default_factory=partial(count, 1))

    def value(
        self, schema: object, path: Path = (), among: JsonTypes = ANY_TYPE
    ) -> Format | None:
        """A value that fits the schema and is of a type `among` these; None: there is none, or
        it is too deep.
        """
        if next(self.visits) > MOST_VISITS:
            raise WireError(TOO_LONG, "tools")
        found = parts_of(schema, self.root, path, self.most_repeats)
        types = among & possible_types(schema, self.root)
        if found is None or not types:
            return None
        if (listed := values_of(schema, self.root)) is not None:
            fitting = (one for one in listed if types_of_value(one) & types)
            return _one_of(self._literal(one) for one in fitting)
        if types <= ATOMS.keys():
            return self._bounded(schema, types)
        parts, path = found
        if (ways := first_ways(parts)) is None:
            return _one_of(self._by_type(reduce(both, parts), path, types))
        if ways.exclusive and self._overlap(ways.schemas):
            return REFUSED_ONE_OF
        return _one_of(self.value(one, path, types) for one in ways.schemas)

    def _overlap(self, ways: Sequence[Schema]) -> bool:
        try:
            return overlap(ways, self.root)
        except TooManyWays as error:
            raise WireError(TOO_LONG, "tools") from error

    def _by_type(self, plain: Schema, path: Path, types: JsonTypes) -> Iterable[Format | None]:
        if str in types:
            yield self._text(input_as_text(self.root) or AnyText())
        if dict in types:
            yield self._object(plain, path)
        if list in types:
            yield self._list(plain, path)
        if not types.isdisjoint(ATOMS):
            bounded = any(key in plain for key in BOUNDS_OF_NUMBERS)
            yield self._bounded(plain, types) if bounded else atoms(types)

    def _bounded(self, schema: object, types: JsonTypes) -> Format:
        """A value of one of these types without quotes or brackets, which fits the schema."""
        one = schema
        if not possible_types(schema, self.root) <= types & ATOMS.keys():
            named = [name for name, kinds in TYPES.items() if kinds <= types & ATOMS.keys()]
            one = {"allOf": [schema, {"type": named}]}
        return argument_format(one, self.root) or atoms(types)

    def arguments(self) -> Format | None:
        """The arguments of a call: an object."""
        if self.root is ANY_OBJECT:  # of a function that is not strict, however deep
            anything = Star(Either((Regex("[^<]+"), self._text(AnyText()))))
            return seq("{", anything)  # the last brace included
        if isinstance(ways := object_ways(self.root), Sequential):
            return ways
        return _one_of(self.value(way, among=TYPES["object"]) for way in ways)

    def _object(self, schema: Schema, path: Path) -> Format | None:
        if (refused := inexpressible(schema)) is not None:
            return refused
        return _one_of(self._members(one, path) for one in without_counts(schema))

    def _members(self, schema: Schema, path: Path) -> Format | None:
        inner, has_to = replace(self, nested=True), required_of(schema)
        named = {key: inner.value(one, path) for key, one in members_of(schema).items()}
        if any(named[key] is None for key in named if key in has_to):
            return None
        possible = {key: self._member(key, one) for key, one in named.items() if one}
        if not named and schema.get("additionalProperties") is not False:
            return seq("{", self._any_members(schema, path), "}")
        if self.nested and not possible.keys() & has_to:
            return seq("{", _some_of(possible), "}")
        members = {"properties": possible, "required": [*has_to], "additionalProperties": False}
        return seq("{", members_format(members, lambda key, _: possible[key], seq(), ","), "}")

    def _any_members(self, schema: Schema, path: Path) -> Format:
        """Members whose names are not in the schema."""
        value: Format | None = self._anything(0 if self.nested else DEEPEST_ANYTHING)
        if isinstance(more := schema.get("additionalProperties"), Mapping):
            value = replace(self, nested=True).value(more, path)
        if value is None:
            return seq()
        member = seq(Regex(ANY_KEY), ":", value)
        return members_format(schema, lambda _, __: member, member, ",")

    def _anything(self, deep: int) -> Format:
        """Any value, with lists and objects in each other so deep."""
        ways: list[Format] = [self._text(AnyText()), atoms(ANY_TYPE)]
        if deep:
            inner = self._anything(deep - 1)
            ways.append(seq("[", _listed(inner), "]"))
            ways.append(seq("{", _listed(seq(Regex(ANY_KEY), ":", inner)), "}"))
        return Either(tuple(ways))

    def _list(self, schema: Schema, path: Path) -> Format | None:
        first, more = _first_items(schema)
        least, most = _count(schema, "minItems", 0), _count(schema, "maxItems", UNBOUNDED)
        deeper = path if isinstance(more, Mapping) else (*path, ANYTHING)
        formats, other = [self.value(one, path) for one in first], self.value(more, deeper)
        if more is False or other is None:
            most = len(formats) if most < 0 else min(most, len(formats))
        if None in formats:
            most = min(formats.index(None), len(formats) if most < 0 else most)
        if 0 <= most < least:
            return None
        return seq("[", _items([one for one in formats if one], other, least, most), "]")

    def _member(self, key: str, value: Format) -> Format:
        if BARE_KEY.fullmatch(key):
            return seq(f"{key}:", value)
        return seq(self._text(ConstString(key)), ":", value)

    def _text(self, inner: Format) -> Format:
        return Sequential((Token(self.quote), inner, Token(self.quote)))

    def _literal(self, value: Any) -> Format | None:  # noqa: ANN401  JSON of any shape
        """Exactly this value; None: a string in it has the quote."""
        match value:
            case str():
                return None if self.quote in value else self._text(ConstString(value))
            case list():
                return _in_marks("[", [self._literal(one) for one in value], "]")
            case dict():
                values = {key: self._literal(one) for key, one in value.items()}
                return _in_marks(
                    "{", [one and self._member(key, one) for key, one in values.items()], "}"
                )
        return ConstString(json.dumps(value))


def arguments_in(quote: str, schema: Schema) -> Format:
    """The arguments of a call, strings of which stand between two of the `quote`. Raises
    WireError if there are none or their grammar becomes longer than is allowed.
    """
    for most_repeats in range(MOST_REPEATS, -1, -1):
        try:
            found = ValueForm(quote, schema, most_repeats).arguments()
        except WireError:
            if not most_repeats:
                raise
            continue
        if found is None:
            break
        return found
    raise WireError(NO_VALUE, "tools")


def atoms(types: JsonTypes) -> Regex:
    """A value of one of these types without quotes or brackets."""
    return Regex("|".join(written for kind, written in ATOMS.items() if kind in types))


def _listed(one: Format) -> Format:
    """Any number of these, with commas between them."""
    return TagsWithSeparator((Tag("", one, ""),), ",")


def _one_of(ways: Iterable[Format | None]) -> Format | None:
    found = tuple(one for one in ways if one is not None)
    return found[0] if len(found) == 1 else Either(found) if found else None


def _in_marks(opens: str, values: Sequence[Format | None], closes: str) -> Format | None:
    """All the values with commas between them; None: one of them is missing."""
    found = [part for one in values if one for part in (",", one)]
    return None if None in values else seq(opens, *found[1:], closes)


def _first_items(schema: Schema) -> tuple[Sequence[object], object]:
    """The schemas of a list's first items, and that of all others."""
    items = schema.get("items", True)
    if isinstance(items, list):
        return items, schema.get("additionalItems", True)
    first = schema.get("prefixItems")
    return first if isinstance(first, list) else (), items


def _some_of(members: Mapping[str, Format]) -> Format:
    """Any of these members, in any order: the last of a name counts."""
    if not members:
        return seq()
    one = Either(tuple(format_each(members, lambda key, _: members[key]).values()))
    return Optional(seq(one, Repeated(0, len(members) - 1, seq(",", one))))


def _items(first: Sequence[Format], other: Format | None, least: int, most: int) -> Format:
    """From `least` to `most` items: these first ones, and then others."""
    first = first[:most] if most >= 0 else first
    begun = first or ([other] if other and most else [])
    left = most if most < 0 else most - len(begun)
    items: Format = seq()
    if other and left:
        items = Repeated(max(least - len(begun), 0), left, seq(",", other))
    for place, one in reversed([*enumerate(begun)]):
        with_others = seq(",", one, items) if place else seq(one, items)
        items = with_others if place < least else Optional(with_others)
    return items


def _count(schema: Schema, name: str, usual: int) -> int:
    found = schema.get(name)
    return found if isinstance(found, int) else usual
