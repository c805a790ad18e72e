"""Structural tags: free text with structured parts in it, such as tool calls. Pure.

Both forms that vLLM and xgrammar know are read:

    {"type": "structural_tag", "format": {"type": "triggered_tags", ...}}
    {"type": "structural_tag", "structures": [{"begin", "schema", "end"}], "triggers": [...]}

Formats: const_string, token (by its text), json_schema, any_text, regex, grammar (as kind
ebnf), sequence, or, tag, triggered_tags, tags_with_separator, optional, plus, star and repeat.
Formats that exclude tokens or trigger on them, the XML styles, and limits on tokens or
characters are refused. A token that is not a special token of the model is matched as text.
`lark` (engine/grammars/texts.py) and any_text's `unlike` are our own extensions.

Unbounded text ends where what follows it first begins, so a tag ends with the first of its
ends. `at_least_one` begins with a tag, as in xgrammar. A trigger that is a special token of the
model is found both as that token and as its text.
"""

from typing import Annotated, Any

import msgspec

from engine.errors import GrammarRefused, reason


class _Format(
    msgspec.Struct,
    frozen=True,
    tag_field="type",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Base of all formats, which are distinguished by `type`."""


class ConstString(_Format, frozen=True, tag="const_string"):
    """This text."""

    value: str


class Token(_Format, frozen=True, tag="token"):
    """This special token, which text tokens cannot write; or its text, if it is not special."""

    token: Annotated[str, msgspec.Meta(min_length=1)]


class JsonSchema(_Format, frozen=True, tag="json_schema"):
    """JSON that fits a schema; all other options must have their defaults."""

    json_schema: dict[str, Any] | bool
    style: str = "json"
    any_order: bool = False


class AnyText(_Format, frozen=True, tag="any_text"):
    """Any text that contains none of these, and whose beginning `unlike` does not match."""

    excludes: tuple[str, ...] = ()
    unlike: str = ""


class Regex(_Format, frozen=True, tag="regex"):
    """Text that a regular expression matches whole."""

    pattern: str


class Ebnf(_Format, frozen=True, tag="grammar"):
    """Text of a grammar."""

    grammar: str


class LarkText(_Format, frozen=True, tag="lark"):
    """Text of a Lark grammar; with `json`, as a JSON string with that text."""

    lark: str
    json: bool = False


class Sequential(_Format, frozen=True, tag="sequence"):
    """Several formats in sequence."""

    elements: "tuple[Format, ...]"


class Either(_Format, frozen=True, tag="or"):
    """One of several formats."""

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
    """Free text; after a trigger, one of the tags that begin with it has to follow."""

    triggers: tuple[str, ...]
    tags: tuple[Tag, ...]
    at_least_one: bool = False
    stop_after_first: bool = False
    excludes: tuple[str, ...] = ()


class TagsWithSeparator(_Format, frozen=True, tag="tags_with_separator"):
    """Only tags, with a separator between them."""

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
    """From `min` to `max` times; `max` -1: without limit."""

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
    """Parse a structural tag of either form; raises GrammarRefused."""
    try:
        given = msgspec.json.decode(source, type=_Source)
        if given.format is not None:
            return given.format
        return TriggeredTags(given.triggers, tuple(map(_tag_of, given.structures or ())))
    except RecursionError as error:
        raise GrammarRefused("structural_tag: formats too deep within each other") from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise GrammarRefused(f"structural_tag: {reason(str(error))}") from error


def structural_tag_of(one: Format) -> str:
    """The source of a structural tag with this format."""
    return msgspec.json.encode({"type": "structural_tag", "format": one}).decode()


def _tag_of(one: _Structure) -> Tag:
    schema = msgspec.json.decode(one.schema) if isinstance(one.schema, str) else one.schema
    return Tag(one.begin, JsonSchema(msgspec.convert(schema, dict[str, Any] | bool)), one.end)
