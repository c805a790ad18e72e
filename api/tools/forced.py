"""Parsers of answers that must be calls, in the JSON of the grammar in api/tools/schemas.py."""

from api.tools.parsing.call_objects import call_list, json_arguments
from api.tools.parsing.output import NotACall, Parser, ParserOutput, Steps
from api.tools.parsing.steps import attempt_call, offered_only, rest_as_content, skip_space
from api.tools.tool_choice import OfferedFunctions


def required_calls(out: ParserOutput, offered: OfferedFunctions) -> Steps:
    """Parse an answer that is a JSON list of calls."""
    yield from attempt_call(out, _list(out, offered))
    yield from rest_as_content(out)


def _list(out: ParserOutput, offered: OfferedFunctions) -> Steps:
    yield from call_list(out, (yield from skip_space()), offered_only(offered))


def named_arguments(name: str) -> Parser:
    """A parser for an answer that is the arguments of function `name`."""

    def parse(out: ParserOutput, offered: OfferedFunctions) -> Steps:
        del offered
        yield from attempt_call(out, _arguments(out, name))
        yield from rest_as_content(out)

    return parse


def _arguments(out: ParserOutput, name: str) -> Steps:
    letter = yield from skip_space()
    if letter != "{":
        raise NotACall
    out.start_call(name)
    yield from json_arguments(out, letter)
    out.end_call()
