"""Structured output together with tool calls: an answer that is JSON of a grammar, or calls."""

from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from api.tools.call_formats import ANY_OBJECT, CallableTools, seq
from api.tools.dialects.dialect import Dialect
from api.tools.functions import Function
from api.tools.parsing.output import Parser, ParserOutput, Steps
from api.tools.parsing.steps import rest_as_content, skip_space
from api.tools.schemas import arguments_grammar, parameters_of
from api.tools.tool_choice import OfferedFunctions, ToolSettings
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
"""The line breaks that models write between their reasoning and the rest of the answer."""


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """An answer that `grammar` constrains, unless it consists of calls. `after_reasoning`:
    reasoning comes first. `any_object`: names of functions whose schemas no grammar can
    express; they take any object.
    """

    grammar: Grammar
    after_reasoning: bool = False
    any_object: Collection[str] = ()


def calls_or_structured(
    output: StructuredOutput, tools: ToolSettings, dialect: Dialect, template: str
) -> Grammar | None:
    """A grammar of either calls, in the dialect's syntax and with their functions' schemas, or
    the structured output. None: models of this dialect call before the part of the answer that
    a grammar constrains. Raises WireError.
    """
    if dialect.write is None:
        return None
    schemas = {
        name: ANY_OBJECT if name in output.any_object else parameters_of(function)
        for name, function in tools.offered.items()
    }
    try:
        calls = dialect.write(CallableTools(schemas, tools.parallel, template))
        if dialect.before_calls is not None:
            calls = seq(Optional(dialect.before_calls), calls)
        either: Format = Either((_json(output.grammar), calls))
        either = seq(Optional(Regex(LINES)), either) if output.after_reasoning else either
        return Grammar("structural_tag", structural_tag_of(either))
    except RecursionError as error:
        raise WireError("tools: a schema is nested too deeply", "tools") from error


def call_grammar(function: Function, dialect: Dialect, template: str) -> Grammar:
    """The grammar of one call in the dialect's syntax, or of its arguments where that has none.
    Raises WireError.
    """
    if dialect.write is None:
        return arguments_grammar(function)
    tools = CallableTools(
        {function.name: parameters_of(function)}, parallel=False, template=template
    )
    try:
        return Grammar("structural_tag", structural_tag_of(dialect.write(tools)))
    except RecursionError as error:
        raise WireError("tools: a schema is nested too deeply", "tools") from error


def _json(grammar: Grammar) -> Format:
    if grammar.kind == "json_object":
        return JsonSchema({**ANY_OBJECT})
    try:
        return JsonSchema(msgspec.json.decode(grammar.source))
    except UNREADABLE as error:
        raise WireError(f"the form's schema: {error}", "response_format") from error


def calls_or_content(dialect: Dialect) -> Parser:
    """A parser for structured output or calls: an answer that does not begin like a call has no
    calls, and markers in it are part of its JSON.
    """
    if (first_letters := dialect.first_letters) is None:
        return dialect.parser

    def parse(out: ParserOutput, offered: OfferedFunctions) -> Steps:
        if (yield from skip_space()) not in first_letters:
            yield from rest_as_content(out)
        yield from dialect.parser(out, offered)

    return parse
