"""An answer that has to have a form, or to be calls: what it is held to, and how it is read."""

from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from api.tools.dialects.dialect import Dialect
from api.tools.parsing.output import Parser, ParserOutput, Steps
from api.tools.parsing.steps import rest_as_content, skip_space
from api.tools.schemas import parameters_of
from api.tools.wishes import Offered, ToolUse
from api.tools.writing import ANY_OBJECT, Offer, row
from api.wire import UNREADABLE, WireError
from engine.grammars.structural_tags import (
    Either,
    Format,
    JsonSchema,
    Optional,
    Regex,
    structural_tag_of,
)
from engine.request import Grammar

JSON_KINDS = ("json_object", "json_schema")
LINES = "\n{1,2}"
"""Models that have thought are used to go on with them, whatever follows."""


@dataclass(frozen=True, slots=True)
class Formed:
    """An answer that is a message of this form, unless it is calls. `behind`: reasoning comes
    first. Functions that are `loose` take any object.
    """

    form: Grammar
    behind: bool = False
    loose: Collection[str] = ()


def calls_or(formed: Formed, use: ToolUse, dialect: Dialect, template: str) -> Grammar | None:
    """Calls, as the dialect writes them and the schemas of their functions have it, or JSON of
    the form. None: models of this dialect call before the answer that a grammar holds. Raises
    WireError.
    """
    if dialect.write is None:
        return None
    schemas = {
        name: ANY_OBJECT if name in formed.loose else parameters_of(function)
        for name, function in use.offered.items()
    }
    try:
        calls = dialect.write(Offer(schemas, use.parallel, template))
        either: Format = Either((_json(formed.form), calls))
        either = row(Optional(Regex(LINES)), either) if formed.behind else either
        return Grammar("structural_tag", structural_tag_of(either))
    except RecursionError as error:
        raise WireError("tools: a schema is nested too deeply", "tools") from error


def _json(form: Grammar) -> Format:
    if form.kind == "json_object":
        return JsonSchema({**ANY_OBJECT})
    try:
        return JsonSchema(msgspec.json.decode(form.source))
    except UNREADABLE as error:
        raise WireError(f"the form's schema: {error}", "response_format") from error


def calls_or_content(dialect: Dialect) -> Parser:
    """An answer that does not begin as calls do has none: marks in it are part of its JSON."""
    if (begins := dialect.begins) is None:
        return dialect.parser

    def parse(out: ParserOutput, offered: Offered) -> Steps:
        if (yield from skip_space()) not in begins:
            yield from rest_as_content(out)
        yield from dialect.parser(out, offered)

    return parse
