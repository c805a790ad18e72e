"""The grammar of arguments that are texts between markers. Pure."""

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
from api.tools.parsing.json_types import accepted_types
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
)

ANY_KEY = r'[^<>"\s]+'
NULL = "null"


@dataclass(frozen=True, slots=True)
class TextArguments:
    """Arguments as texts between markers: `before` precedes the key, `behind` follows it, and
    `end` follows the value. `behind_json` replaces `behind` for values that cannot be text, if
    set. `line` is what parsers drop on both sides of a text; it is not written.
    """

    before: str
    behind: str
    end: str
    behind_json: str | None = None
    line: str = ""

    def of(self, schema: Schema) -> Format:
        """The arguments that the schema names, in its order, or any arguments if the schema is
        open. Raises WireError, as `format_each` does.
        """
        return object_format(schema, lambda way: self._members(way, schema))

    def _members(self, plain: Schema, root: Schema) -> Format:
        if is_open(plain):
            other = plain.get("additionalProperties")
            value = self._value(other, root) if other else self._anything()
            return Repeated(*numbers_of(plain), seq(self.before, Regex(ANY_KEY), value))
        named, needed = members_of(plain), required_of(plain)
        written = format_each(named, lambda key, one: self._one(key, one, root))
        ways = (one if key in needed else Optional(one) for key, one in written.items())
        return seq(*ways)

    def _anything(self) -> Format:
        """The value of a key that no schema names."""
        text = Tag(self.behind, AnyText(), self.end)
        if self.behind_json is None:
            return text
        return Either((text, Tag(self.behind_json, JsonSchema(json_schema=True), self.end)))

    def _one(self, key: str, schema: object, root: Schema) -> Format:
        if (text := input_as_text(root)) is not None:
            begin = f"{self.before}{key}{self.behind}{self.line}"
            return Tag(begin, text, f"{self.line}{self.end}")
        return seq(f"{self.before}{key}", self._value(schema, root))

    def _value(self, schema: object, root: Schema) -> Format:
        types = accepted_types(schema, root)
        if str not in types:
            behind = self.behind if self.behind_json is None else self.behind_json
            return Tag(behind, argument_format(schema, root) or AnyText(), self.end)
        listed = listed_values(schema, root)
        if self.behind_json is None or type(None) not in types:
            return Tag(self.behind, self._text(listed), self.end)
        strings = listed and [one for one in listed if one is not None]
        null = Tag(self.behind_json, ConstString(NULL), self.end)
        return Either((Tag(self.behind, self._text(strings), self.end), null))

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
