"""Says why a grammar is refused in terms of what the client sent: llguidance speaks of itself.

It names its own options, shows the grammar that was written for it, and not the client's.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial, reduce
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from engine.errors import reason
from engine.grammars.byte_tokens import byte_tokenizer
from engine.grammars.exclusive_ways import member, with_exclusive_ways
from engine.grammars.schemas import NAMED, NESTED, without_annotations
from engine.request import Grammar

LONGEST_SHOWN = 40
DEEPEST = 123  # levels of objects and lists in a schema; llguidance reads a few more
TOO_DEEP = f"objects and lists may be nested {DEEPEST} levels deep at most"
NO_WAY = ("", "NoExtension", "NoExtensionBias")  # llguidance's names for a dead end
ONE_OF = "coerce_one_of"  # its option, by which it refuses a oneOf
OVERLAP = (
    "its ways overlap, or cannot be told apart: use anyOf, or give each way a required "
    "property with a const of its own"
)
PATTERN = re.compile(
    r"regex parse error:\n    (?P<pattern>[^\n]*)\n    (?P<indent> *)\^+\n"
    r"error: (?P<why>[^\n]*)"
)
LISTING = re.compile(r"\n +\d+ \| .*", re.DOTALL)
WRITTEN_AT = re.compile(r"^at \d+\(\d+\): (?:failed to compile JSON schema: )?")
ALONE = ("allOf", "anyOf", "oneOf")
Place = tuple[str, Any]
"""A pointer, such as #/properties/a, and the schema there."""


def refusal(grammar: Grammar, said: str, limits: LLParserLimits) -> str:
    """Why a grammar is refused; `said` is llguidance's error, empty if it found no text."""
    try:
        return f"{grammar.kind}: {_why(grammar, said, limits)}"
    except RecursionError:  # within the levels of a structural tag
        return f"{grammar.kind}: {reason(said)}"


def reason_of(error: Exception) -> str:
    """The same of an exception."""
    return TOO_DEEP if isinstance(error, RecursionError) else reason(str(error))


def is_too_deep(schema: object) -> bool:
    """Whether objects and lists are nested deeper than a schema's may be."""
    level: list[object] = [schema]
    for _ in range(DEEPEST):
        inner = [list(one.values()) if isinstance(one, dict) else one for one in level]
        level = [
            one for values in inner for one in _listed(values) if isinstance(one, dict | list)
        ]
        if not level:
            return False
    return True


def _listed(values: object) -> Sequence[object]:
    return values if isinstance(values, list) else ()


def _why(grammar: Grammar, said: str, limits: LLParserLimits) -> str:
    if ONE_OF in said:
        places = map(partial(_bad_one_of, limits), _schemas(grammar))
        where = next(filter(None, places), "a oneOf")
        return f"{where}: {OVERLAP}"
    if found := PATTERN.search(said):
        return reason(_bad_pattern(grammar, found))
    if reason(said) in NO_WAY:
        itself = any(map(_is_itself, _schemas(grammar)))
        return "the schema refers only to itself" if itself else "no text is allowed"
    if grammar.kind != "ebnf":
        said = WRITTEN_AT.sub("", LISTING.sub("", said))
    return reason(said.replace("json-schema:///", ""))


def _bad_pattern(grammar: Grammar, found: re.Match[str]) -> str:
    pattern, at = found["pattern"], len(found["indent"])
    where = f"the pattern `{pattern}`"
    if grammar.kind == "regex":
        pattern, at, where = grammar.source, _source_place(grammar.source, pattern[:at]), ""
    for top, schema in _schemas(grammar):
        for place, one in _within(top, schema):
            if isinstance(one, Mapping) and one.get("pattern") == pattern:
                where = f"{place}/pattern"
    shown = pattern[at : at + LONGEST_SHOWN]
    why = f"{found['why']}, at character {at + 1}" + (f": `{shown}`" if shown else "")
    return f"{where}: {why}" if where else why


def _source_place(source: str, before: str) -> int:
    """Where in the client's expression something is that comes after this text, in which
    slashes and line breaks may have been escaped.
    """
    at = 0
    while before and at < len(source):
        escaped = before.startswith("\\") and source[at] != "\\"
        before, at = before[1 + escaped :], at + 1
    return at


def _schemas(grammar: Grammar) -> Iterator[Place]:
    """The JSON schemas of a grammar, by their places in it."""
    if grammar.kind == "json_schema":
        yield "#", json.loads(grammar.source)
    elif grammar.kind == "structural_tag":
        yield from _of_tag("#", json.loads(grammar.source))


def _of_tag(place: str, given: Any) -> Iterator[Place]:  # noqa: ANN401  JSON of any shape
    for key, value in _members(given):
        if key in ("json_schema", "schema"):
            yield f"{place}/{key}", value
        else:
            yield from _of_tag(f"{place}/{key}", value)


def _members(given: object) -> Iterator[tuple[str, Any]]:
    if isinstance(given, Mapping):
        yield from given.items()
    elif isinstance(given, list):
        yield from ((str(number), one) for number, one in enumerate(given))


def _within(place: str, schema: Any) -> Iterator[Place]:  # noqa: ANN401  JSON of any shape
    """A schema and those in it."""
    yield place, schema
    for key, value in _members(schema if isinstance(schema, Mapping) else None):
        if key in NESTED and not isinstance(value, list):
            yield from _within(f"{place}/{key}", value)
        elif key in NAMED or key in NESTED:
            for name, one in _members(value):
                yield from _within(f"{place}/{key}/{name}", one)


def _bad_one_of(limits: LLParserLimits, given: Place) -> str | None:
    """Where the first oneOf is that llguidance refuses."""
    top, schema = given
    plain = json.dumps(with_exclusive_ways(without_annotations(schema)))
    places = [place for place, one in _within(top, json.loads(plain)) if _has_one_of(one)]
    first, last = 0, len(places)
    while first < last:  # the least number of them that is refused
        middle = (first + last) // 2
        if _is_refused(plain, top, set(places[: middle + 1]), limits):
            last = middle
        else:
            first = middle + 1
    return f"{places[first]}/oneOf" if first < len(places) else None


def _has_one_of(schema: object) -> bool:
    return isinstance(schema, Mapping) and "oneOf" in schema


def _is_refused(source: str, top: str, kept: set[str], limits: LLParserLimits) -> bool:
    schema = json.loads(source)
    for place, one in list(_within(top, schema)):
        if _has_one_of(one) and place not in kept:
            del one["oneOf"]
    written = LLMatcher.grammar_from_json_schema(json.dumps(schema))
    return ONE_OF in LLMatcher(_tokenizer(), written, log_level=0, limits=limits).get_error()


@cache
def _tokenizer() -> LLTokenizer:
    return byte_tokenizer()


def _is_itself(given: Place) -> bool:
    """Whether references lead from a schema back to it, with nothing else on the way."""
    _, root = given
    schema, seen = root, set[int]()
    while isinstance(schema, Mapping) and id(schema) not in seen:
        seen.add(id(schema))
        path = schema.get("$ref")
        ways = [one for key in ALONE for one in _listed(schema.get(key))]
        if isinstance(path, str) and path.startswith("#"):
            schema = reduce(member, filter(None, path[1:].split("/")), root)
        elif len(ways) == 1:
            schema = ways[0]
        else:
            return False
    return isinstance(schema, Mapping)
