"""How calls are written: what a grammar leaves a model that may call. Pure.

Each dialect writes one call, of parts that are the same for all: texts, marks that may be
special tokens, and arguments, as JSON or as texts between marks of their own.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from api.tools.functions import INPUT, InputSchema
from api.tools.parsing.json_types import (
    STRING_ONLY,
    JsonTypes,
    accepted_types,
    resolve_reference,
)
from api.wire import WireError
from engine.grammars.structural_tags import (
    AnyText,
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
    Tag,
    Token,
)
from engine.request import LONGEST_SOURCE

Schema = Mapping[str, Any]
ANY_OBJECT: Schema = {"type": "object"}
DEFINITIONS = ("$defs", "definitions")
FROM_ELSEWHERE = (b'"$ref":"#"', b'"$ref":"#/properties')
"""References to what is not among the definitions: not to be had for one argument alone."""
BLANKS = r"[ \t\r\n]*"
ANY_KEY = r'[^<>"\s]+'
TOO_LONG = f"tools: arguments of a function take a grammar of over {LONGEST_SOURCE} characters"


@dataclass(frozen=True, slots=True)
class Offer:
    """Functions that may be called, each with the schema that its arguments keep to. The chat
    `template` tells forms of one family apart. `most` calls come behind one another, if it is
    definition.
    """

    functions: Mapping[str, Schema]
    parallel: bool
    template: str
    most: int | None = None

    def calls(self, one: Callable[[str, Schema], Format], between: str = "") -> Format:
        """A call, or several with this between them, if they may come in parallel."""
        call = Either(tuple(one(name, schema) for name, schema in self.functions.items()))
        if not self.parallel:
            return call
        other = row(between, call) if between else call
        if self.most is not None:
            return row(call, Repeated(0, self.most - 1, other))
        return row(call, Star(other)) if between else Plus(call)


def row(*parts: str | Format) -> Sequential:
    """One after the other; a string is text. Of none it is empty: xgrammar has no empty row."""
    written = [ConstString(one) if isinstance(one, str) else one for one in parts]
    return Sequential(tuple(written or [ConstString("")]))


def marks(*texts: str) -> Sequential:
    """Special tokens or texts, as the model has them."""
    return Sequential(tuple(map(Token, texts)))


def parted(calls: Format) -> tuple[str, Format]:
    """The mark that calls begin with, and what they are behind it; raises TypeError for what
    has none.
    """
    match calls:
        case Token(mark):
            return mark, row()
        case Sequential((first, *others)):
            mark, rest = parted(first)
            return mark, row(rest, *others)
        case Either(ways):
            found, rests = zip(*map(parted, ways), strict=True)
            return found[0], Either(rests)
    raise TypeError(f"calls that begin with {calls}")


def as_json(schema: Schema) -> Format:
    """Arguments, as JSON."""
    if (text := text_as_json(schema)) is not None:
        return row(f'{{"{INPUT}": ', text, "}")
    return JsonSchema(dict(schema))


def text_as_json(schema: Schema) -> Format | None:
    """What a custom tool is given, if its form is more than a JSON schema can say."""
    if not isinstance(schema, InputSchema) or schema.grammar.syntax == "regex":
        return None
    return LarkText(schema.grammar.definition, json=True)


def text_of(schema: Schema) -> Format | None:
    """What a custom tool is given, if that has a form, where a text stands as it is."""
    if not isinstance(schema, InputSchema):
        return None
    definition = schema.grammar.definition
    return Regex(definition) if schema.grammar.syntax == "regex" else LarkText(definition)


def one_as_json(schema: object, root: Schema) -> JsonSchema | None:
    """One argument of those that `root` is about. None: its schema lies elsewhere."""
    if not isinstance(schema, Mapping):
        return JsonSchema(json_schema=True)
    if any(one in msgspec.json.encode(schema) for one in FROM_ELSEWHERE):
        return None
    known = {name: root[name] for name in DEFINITIONS if name in root}
    return JsonSchema({**known, **schema})


def json_call(name: str, schema: Schema, key: str = "arguments") -> Format:
    """An object of a function's name and its arguments."""
    return row(f'{{"name": "{name}", "{key}": ', as_json(schema), "}")


def properties_of(schema: Schema) -> Mapping[str, object]:
    """By name; none where a client has written something else there."""
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def is_open(schema: Schema) -> bool:
    """Whether it takes anything and names nothing of it."""
    return not properties_of(schema) and schema.get("additionalProperties") is not False


def needed_of(schema: Schema) -> Collection[str]:
    """Names that have to be there."""
    found = schema.get("required")
    return {one for one in found if isinstance(one, str)} if isinstance(found, list) else ()


def written_out(
    named: Mapping[str, object], one: Callable[[str, object], Format], *, again: bool = False
) -> Mapping[str, Format]:
    """Each as `one` writes its name and value; `again`: each will stand once more than the one
    before it. Raises WireError once a grammar of them all is longer than one may be.
    """
    written, size = dict[str, Format](), 0
    for key, value in named.items():
        written[key] = one(key, value)
        length = len(msgspec.json.encode(written[key]).decode())
        size += length * len(written) if again else length
        if size > LONGEST_SOURCE:
            raise WireError(TOO_LONG, "tools")
    return written


def named_values(
    schema: Schema, one: Callable[[str, object], Format], anything: Format, between: str
) -> Format:
    """Those that the schema needs, and then others; or first any other, where none is needed;
    or `anything`, so often as it likes, where it names none. `one` writes a name and its value.
    Raises WireError, as `written_out` does.
    """
    if is_open(schema):
        return Optional(row(anything, Star(row(between, anything))))
    named, has_to = properties_of(schema), needed_of(schema)
    needed = [key for key in named if key in has_to]
    written = written_out(named, one, again=not needed)
    others = [written[key] for key in named if key not in has_to]
    if needed:
        first, *more = (written[key] for key in needed)
        return _behind(row(first, *(row(between, value) for value in more)), others, between)
    rests = enumerate(others, 1)
    ways = tuple(_behind(value, others[place:], between) for place, value in rests)
    return Optional(Either(ways)) if ways else row()


def _behind(first: Format, others: Sequence[Format], between: str) -> Format:
    return row(first, *(Optional(row(between, one)) for one in others))


@dataclass(frozen=True, slots=True)
class TextArguments:
    """Arguments that stand as texts between marks: `before` the key and behind it, and at the
    `end` of the value. `behind_json`: behind keys of what can be no text, if that differs.
    `line`: what readers leave out on both sides of a text, though it is not written.
    """

    before: str
    behind: str
    end: str
    behind_json: str | None = None
    line: str = ""

    def of(self, schema: Schema) -> Format:
        """Those that the schema names, in its order, or any that it leaves open. Raises
        WireError, as `written_out` does.
        """
        plain = resolve_reference(schema, schema)
        if is_open(plain):
            return Star(row(self.before, Regex(ANY_KEY), self._anything()))
        named, needed = properties_of(plain), needed_of(plain)
        written = written_out(named, lambda key, one: self._one(key, one, schema))
        ways = (one if key in needed else Optional(one) for key, one in written.items())
        return row(*ways)

    def _anything(self) -> Format:
        """Of a key that no schema names."""
        text = Tag(self.behind, AnyText(), self.end)
        if self.behind_json is None:
            return text
        return Either((text, Tag(self.behind_json, JsonSchema(json_schema=True), self.end)))

    def _one(self, key: str, schema: object, root: Schema) -> Format:
        if (text := text_of(root)) is not None:
            begin = f"{self.before}{key}{self.behind}{self.line}"
            return Tag(begin, text, f"{self.line}{self.end}")
        behind = self.behind if str in accepted_types(schema, root) else self.behind_json
        begin = f"{self.before}{key}{self.behind if behind is None else behind}"
        return Tag(begin, _value(schema, root), self.end)


def _value(schema: object, root: Schema) -> Format:
    """What can be a text is any, unless it is one of some."""
    types = accepted_types(schema, root)
    if str in types:
        return listed_texts(schema, types) or AnyText()
    return one_as_json(schema, root) or AnyText()


def listed_texts(schema: object, types: JsonTypes) -> Format | None:
    """One of the texts that the schema lists, if it lists nothing else."""
    listed = (
        schema.get("enum") if isinstance(schema, Mapping) and types == STRING_ONLY else None
    )
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        return None
    return Either(tuple(map(ConstString, listed)))
