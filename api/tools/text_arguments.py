"""The grammar of arguments that are texts between markers. Pure."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from api.tools.call_formats import (
    Schema,
    argument_format,
    format_each,
    input_as_text,
    object_format,
    seq,
)
from api.tools.object_schemas import is_open, members_of, numbers_of
from api.tools.parsing.json_types import ANY_TYPE, STRING_ONLY, JsonTypes, accepted_types
from api.tools.parsing.listed_values import Values, listed_values
from api.tools.parsing.ways import required_of
from api.wire import WireError
from engine.grammars.structural_tags import (
    AnyText,
    ConstString,
    Either,
    Format,
    JsonSchema,
    Optional,
    Regex,
    Repeated,
    Tag,
    Token,
)

TYPES = "{types}"
ANY_KEY = r'[^<>"\s]+'
NULL = "null"


def as_written(key: str) -> str:
    """The key itself: models whose keys are written otherwise have another function."""
    return key


@dataclass(frozen=True, slots=True)
class TextArguments:
    """Arguments as texts between markers: `before` precedes the key, `behind` follows it, and
    `end` follows the value. `behind_json` replaces `behind` for values that cannot be text, if
    set; where it has `TYPES`, there are the `type_names` of the value's types. `line` is what
    parsers drop on both sides of a text; it is not written. `tokens` are the parts of markers
    that may be special tokens. `spell_key` writes a key. With `behind_name`, the key comes
    again behind `end`, and this after it.
    """

    before: str
    behind: str
    end: str
    behind_json: str | None = None
    line: str = ""
    tokens: tuple[str, ...] = ()
    type_names: Mapping[type, str] | None = None
    spell_key: Callable[[str], str] = as_written
    behind_name: str | None = None

    def of(self, schema: Schema) -> Format:
        """The arguments that the schema names, in its order, or any arguments if the schema is
        open. Raises WireError, as `format_each` does.
        """
        return object_format(schema, lambda way: self._members(way, schema))

    def _members(self, plain: Schema, root: Schema) -> Format:
        if is_open(plain):
            other = plain.get("additionalProperties")
            value = self._value(other, root) if other else self._anything()
            key = seq(*self._spelled(self.before), Regex(ANY_KEY))
            argument = seq(*key.elements, value, *self._again(Regex(ANY_KEY)))
            return Repeated(*numbers_of(plain), argument)
        named, needed = members_of(plain), required_of(plain)
        written = format_each(named, lambda key, one: self._one(key, one, root))
        ways = (one if key in needed else Optional(one) for key, one in written.items())
        return seq(*ways)

    def _anything(self) -> Format:
        """The value of a key that no schema names."""
        text = self._tag(self.behind, AnyText())
        if self.behind_json is None:
            return text
        anything = JsonSchema(json_schema=True)
        return Either((text, self._json(anything, ANY_TYPE - STRING_ONLY)))

    def _one(self, key: str, schema: object, root: Schema) -> Format:
        if (text := input_as_text(root)) is not None:
            begin = f"{self.before}{self.spell_key(key)}{self.behind}{self.line}"
            return seq(self._tag(begin, text, self.line), *self._again(ConstString(key)))
        before = self._spelled(f"{self.before}{self.spell_key(key)}")
        return seq(*before, self._value(schema, root), *self._again(ConstString(key)))

    def _again(self, key: Format) -> tuple[Format, ...]:
        """What comes behind the end of an argument with this key."""
        return () if self.behind_name is None else (key, ConstString(self.behind_name))

    def _value(self, schema: object, root: Schema) -> Format:
        types = accepted_types(schema, root)
        if str not in types:
            return self._json(argument_format(schema, root) or AnyText(), types)
        listed = listed_values(schema, root)
        if self.behind_json is None or type(None) not in types:
            return self._tag(self.behind, self._text(listed))
        strings = listed and [one for one in listed if one is not None]
        null = self._json(ConstString(NULL), frozenset({type(None)}))
        return Either((self._tag(self.behind, self._text(strings)), null))

    def _json(self, value: Format, types: JsonTypes) -> Format:
        """A value that is JSON of these types."""
        begin = self.behind if self.behind_json is None else self.behind_json
        if self.type_names is None:
            return self._tag(begin, value)
        names = dict.fromkeys(name for one, name in self.type_names.items() if one in types)
        before, _, behind = begin.partition(TYPES)
        inner = Either(tuple(map(ConstString, names)))
        ends = self._spelled(self.end)
        return seq(*self._spelled(before), inner, *self._spelled(behind), value, *ends)

    def _tag(self, begin: str, value: Format, line: str = "") -> Format:
        """A value between its markers."""
        end = f"{line}{self.end}"
        if not self.tokens:
            return Tag(begin, value, end)
        return seq(*self._spelled(begin), value, *self._spelled(end))

    def _spelled(self, text: str) -> tuple[Format, ...]:
        """The text of markers; parts of it may be special tokens."""
        if not self.tokens:
            return (ConstString(text),)
        parts = re.split(f"({'|'.join(map(re.escape, self.tokens))})", text)
        return tuple(
            Token(one) if one in self.tokens else ConstString(one) for one in parts if one
        )

    def _text(self, listed: Values | None) -> Format:
        """One of the listed texts, or any; raises WireError if each has the `end` in it."""
        if not listed:
            return AnyText()
        texts = [NULL if one is None else one for one in listed]
        readable = [one for one in texts if self.end.strip() not in one]
        if not readable:
            raise WireError(f"tools: each text of an enum has {self.end.strip()}", "tools")
        return Either(tuple(ConstString(self._in_lines(one)) for one in readable))

    def _in_lines(self, text: str) -> str:
        """The text, so that parsers drop nothing of it."""
        line = self.line
        edged = line and (text.startswith(line) or text.endswith(line))
        return f"{line}{text}{line}" if edged else text
