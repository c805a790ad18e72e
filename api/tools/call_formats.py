"""Parts of structural tags, from which dialects build the grammars of their tool calls. Pure.

The parts are texts, markers that may be special tokens, and arguments as JSON; arguments as
texts between markers are in api/tools/text_arguments.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from api.tools.functions import INPUT, InputSchema
from api.tools.object_schemas import (
    inexpressible,
    is_open,
    members_of,
    numbers_of,
    without_counts,
)
from api.tools.parsing.ways import (
    MOST_WAYS,
    Overlapping,
    TooManyWays,
    possible,
    required_of,
    ways_of,
)
from api.wire import WireError
from engine.grammars.structural_tags import (
    ConstString,
    Either,
    Format,
    JsonSchema,
    LarkText,
    Optional,
    Plus,
    Regex,
    Repeated,
    Sequential,
    Star,
    Token,
)
from engine.request import LONGEST_SOURCE

Schema = Mapping[str, Any]
ANY_OBJECT: Schema = {"type": "object"}
DEFINITIONS = ("$defs", "definitions")
REFUSED_ONE_OF = Sequential((JsonSchema({"oneOf": [{}, {}]}),))
"""No grammar has it, as where calls are JSON."""
FROM_ELSEWHERE = (b'"$ref":"#"', b'"$ref":"#/properties')
"""References outside the definitions, which cannot be resolved for one argument alone."""
BLANKS = r"[ \t\r\n]*"
TOO_LONG = f"tools: arguments of a function take a grammar of over {LONGEST_SOURCE} characters"


@dataclass(frozen=True, slots=True)
class CallableTools:
    """The `schemas` of the functions that may be called, by name. `parallel`: an answer may
    have several calls, at most `most` of them if that is set. Dialects with variants choose
    one by the chat `template`.
    """

    schemas: Mapping[str, Schema]
    parallel: bool
    template: str
    most: int | None = None

    def calls(self, one: Callable[[str, Schema], Format], between: str = "") -> Format:
        """One call, or several with `between` between them if parallel calls are allowed. `one`
        builds the format of a call from a function's name and schema.
        """
        call = Either(tuple(one(name, schema) for name, schema in self.schemas.items()))
        if not self.parallel:
            return call
        other = seq(between, call) if between else call
        if self.most is not None:
            return seq(call, Repeated(0, self.most - 1, other))
        return seq(call, Star(other)) if between else Plus(call)


def seq(*parts: str | Format) -> Sequential:
    """The parts in sequence; a string is constant text. Without parts: an empty text."""
    written = [ConstString(one) if isinstance(one, str) else one for one in parts]
    return Sequential(tuple(written or [ConstString("")]))


def tokens(*texts: str) -> Sequential:
    """Markers in sequence: each a special token, if the model has it, or else text."""
    return Sequential(tuple(map(Token, texts)))


def split_marker(calls: Format) -> tuple[str, Format]:
    """The marker that a format of calls begins with, and the format after it; raises TypeError
    if it begins with none.
    """
    match calls:
        case Token(mark):
            return mark, seq()
        case Sequential((first, *others)):
            mark, rest = split_marker(first)
            return mark, seq(rest, *others)
        case Either(ways):
            found, rests = zip(*map(split_marker, ways), strict=True)
            return found[0], Either(rests)
    raise TypeError(f"calls that begin with {calls}")


def arguments_format(schema: Schema) -> Format:
    """The format of arguments as JSON."""
    if (text := input_as_json(schema)) is not None:
        return seq(f'{{"{INPUT}": ', text, "}")
    return JsonSchema(dict(schema))


def input_as_json(schema: Schema) -> Format | None:
    """A custom tool's input as a JSON string, if it has a grammar that is no regex."""
    if not isinstance(schema, InputSchema) or schema.grammar.syntax == "regex":
        return None
    return LarkText(schema.grammar.definition, json=True)


def input_as_text(schema: Schema) -> Format | None:
    """A custom tool's input as plain text, if it has a grammar."""
    if not isinstance(schema, InputSchema):
        return None
    definition = schema.grammar.definition
    return Regex(definition) if schema.grammar.syntax == "regex" else LarkText(definition)


def argument_format(schema: object, root: Schema) -> JsonSchema | None:
    """One argument as JSON, with the definitions of `root`. None: its schema refers to another
    part of `root`.
    """
    if not isinstance(schema, Mapping):
        return JsonSchema(json_schema=True)
    if any(one in msgspec.json.encode(schema) for one in FROM_ELSEWHERE):
        return None
    known = {name: root[name] for name in DEFINITIONS if name in root}
    return JsonSchema({**known, **schema})


def json_call_format(name: str, schema: Schema, key: str = "arguments") -> Format:
    """A call as a JSON object of the function's name and its arguments."""
    return seq(f'{{"name": "{name}", "{key}": ', arguments_format(schema), "}")


def object_format(schema: Schema, one: Callable[[Schema], Format]) -> Format:
    """An object that fits the schema in one of its ways, each of which `one` formats. Raises
    WireError, as `format_each` does.
    """
    ways = object_ways(schema)
    if isinstance(ways, Sequential):
        return ways
    written = [one(way) for way in ways]
    if sum(len(msgspec.json.encode(form)) for form in written) > LONGEST_SOURCE:
        raise WireError(TOO_LONG, "tools")
    return written[0] if len(ways) == 1 else Either(tuple(written))


def object_ways(schema: Schema) -> Sequence[Schema] | Sequential:
    """The ways in which an object fits the schema, or a format that is refused as JSON if one
    of them cannot be expressed. Raises WireError if there are too many.
    """
    try:
        ways = ways_of(schema)
    except TooManyWays as error:
        raise WireError(TOO_LONG, "tools") from error
    except Overlapping:
        return REFUSED_ONE_OF
    ways = [one for way in ways if (one := possible(way, schema)) is not None]
    if not ways:  # refused with the reason that JSON has
        return Sequential((JsonSchema(dict(schema)), JsonSchema(json_schema=False)))
    refused = [found for way in ways if (found := inexpressible(way))]
    if refused:
        return refused[0]
    uncounted = [one for way in ways for one in without_counts(way)]
    if len(uncounted) > MOST_WAYS:
        raise WireError(TOO_LONG, "tools")
    return uncounted


def format_each(
    named: Mapping[str, object], one: Callable[[str, object], Format], *, again: bool = False
) -> Mapping[str, Format]:
    """The format of each name and schema by `one`; `again`: each will be repeated once more
    than the one before it. Raises WireError if their grammar becomes longer than is allowed.
    """
    written, size = dict[str, Format](), 0
    for key, value in named.items():
        written[key] = one(key, value)
        length = len(msgspec.json.encode(written[key]).decode())
        size += length * len(written) if again else length
        if size > LONGEST_SOURCE:
            raise WireError(TOO_LONG, "tools")
    return written


def members_format(
    schema: Schema, one: Callable[[str, object], Format], anything: Format, between: str
) -> Format:
    """The members of an object: required ones first, then optional ones, each formatted by
    `one` from name and schema. A schema without properties takes `anything`, as often as
    it says. Raises WireError, as `format_each` does.
    """
    if is_open(schema):
        least, most = numbers_of(schema)
        again = Repeated(max(least - 1, 0), max(most - 1, -1), seq(between, anything))
        several = seq(anything, again) if most else seq()
        return several if least else Optional(several)
    named, has_to = members_of(schema), required_of(schema)
    needed = [key for key in named if key in has_to]
    written = format_each(named, one, again=not needed)
    others = [written[key] for key in named if key not in has_to]
    if needed:
        first, *more = (written[key] for key in needed)
        return _behind(seq(first, *(seq(between, value) for value in more)), others, between)
    rests = enumerate(others, 1)
    ways = tuple(_behind(value, others[place:], between) for place, value in rests)
    return Optional(Either(ways)) if ways else seq()


def _behind(first: Format, others: Sequence[Format], between: str) -> Format:
    return seq(first, *(Optional(seq(between, one)) for one in others))
