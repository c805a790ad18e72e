"""Structural tags: free text with structured parts in it, such as tool calls. Pure.

Both forms that vLLM and xgrammar know are read:

    {"type": "structural_tag", "format": {"type": "triggered_tags", ...}}
    {"type": "structural_tag", "structures": [{"begin", "schema", "end"}], "triggers": [...]}

Formats: const_string, token (by its text), json_schema, any_text, regex, grammar (as kind
ebnf), sequence, or, tag, triggered_tags, tags_with_separator, optional, plus, star and repeat.
Those that bar tokens or look for them, the XML styles, and limits of tokens or characters are
refused. A token that is no special one of the model is its text. `lark` is nobody else's
(engine/grammars/texts.py), nor is `unlike`, of any_text.

Text that nothing bounds ends where what follows it first begins; so a tag ends with the
first of its ends. `at_least_one` begins with a tag, as it does in xgrammar. A trigger that is
a special token of the model is found as that, and as its text.
"""

from typing import Annotated, Any

import msgspec

from engine.errors import GrammarRefused


class _Format(
    msgspec.Struct,
    frozen=True,
    tag_field="type",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Told apart by `type`."""


class ConstString(_Format, frozen=True, tag="const_string"):
    """This text."""

    value: str


class Token(_Format, frozen=True, tag="token"):
    """This special token, which no text says; or the same as text, if it is none."""

    token: Annotated[str, msgspec.Meta(min_length=1)]


class JsonSchema(_Format, frozen=True, tag="json_schema"):
    """JSON that fits a schema; nothing but the defaults of the rest is known here."""

    json_schema: dict[str, Any] | bool
    style: str = "json"
    any_order: bool = False


class AnyText(_Format, frozen=True, tag="any_text"):
    """Any text without these in it, which does not begin as this expression matches."""

    excludes: tuple[str, ...] = ()
    unlike: str = ""


class Regex(_Format, frozen=True, tag="regex"):
    """Text that a regular expression matches whole."""

    pattern: str


class Ebnf(_Format, frozen=True, tag="grammar"):
    """Text of a grammar."""

    grammar: str


class LarkText(_Format, frozen=True, tag="lark"):
    """Text of a Lark grammar; `json`: as a JSON string that says it."""

    lark: str
    json: bool = False


class Sequential(_Format, frozen=True, tag="sequence"):
    """One after the other."""

    elements: "tuple[Format, ...]"


class Either(_Format, frozen=True, tag="or"):
    """One of these."""

    elements: "tuple[Format, ...]"


class Tag(_Format, frozen=True, tag="tag"):
    """`begin`, the content, and one of the ends."""

    begin: str
    content: "Format"
    end: str | tuple[str, ...]

    @property
    def ends(self) -> tuple[str, ...]:
        """At least one."""
        return (self.end,) if isinstance(self.end, str) else self.end or ("",)


class TriggeredTags(_Format, frozen=True, tag="triggered_tags"):
    """Free text; where a trigger comes in it, one of the tags that begin so has to follow."""

    triggers: tuple[str, ...]
    tags: tuple[Tag, ...]
    at_least_one: bool = False
    stop_after_first: bool = False
    excludes: tuple[str, ...] = ()


class TagsWithSeparator(_Format, frozen=True, tag="tags_with_separator"):
    """Tags and nothing but tags."""

    tags: tuple[Tag, ...]
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


class Optional(_Format, frozen=True, tag="optional"):
    """Once or never."""

    content: "Format"


class Plus(_Format, frozen=True, tag="plus"):
    """At least once."""

    content: "Format"


class Star(_Format, frozen=True, tag="star"):
    """Any number of times."""

    content: "Format"


class Repeated(_Format, frozen=True, tag="repeat"):
    """So many times; `max` -1 is without end."""

    min: int
    max: int
    content: "Format"


Format = (
    ConstString
    | Token
    | JsonSchema
    | AnyText
    | Regex
    | Ebnf
    | LarkText
    | Sequential
    | Either
    | Tag
    | TriggeredTags
    | TagsWithSeparator
    | Optional
    | Plus
    | Star
    | Repeated
)


class _Structure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    begin: str
    end: str
    schema: dict[str, Any] | bool | str


class _Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str = "structural_tag"
    format: Format | None = None
    structures: tuple[_Structure, ...] | None = None
    triggers: tuple[str, ...] = ()


def read_structural_tag(source: str) -> Format:
    """Of either form; raises GrammarRefused."""
    try:
        given = msgspec.json.decode(source, type=_Source)
        if given.format is not None:
            return given.format
        return TriggeredTags(given.triggers, tuple(map(_tag_of, given.structures or ())))
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise GrammarRefused(f"structural_tag: {error}") from error


def structural_tag_of(one: Format) -> str:
    """The source that is read as this."""
    return msgspec.json.encode({"type": "structural_tag", "format": one}).decode()


def _tag_of(one: _Structure) -> Tag:
    schema = msgspec.json.decode(one.schema) if isinstance(one.schema, str) else one.schema
    return Tag(one.begin, JsonSchema(msgspec.convert(schema, dict[str, Any] | bool)), one.end)
