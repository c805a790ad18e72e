"""Calls as Mistral's models write them, older ones and newer ones.

[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]
[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]123456789[ARGS]{}
"""

from api.tools.call_formats import (
    CallableTools,
    Schema,
    arguments_format,
    json_call_format,
    seq,
    tokens,
)
from api.tools.dialects.dialect import Dialect, short_id
from api.tools.parsing.call_objects import call_list, json_arguments
from api.tools.parsing.output import SPACE, NotACall, ParserOutput, Steps
from api.tools.parsing.steps import (
    NAME_LETTERS,
    any_name,
    calls_after_markers,
    literal,
    skip_space,
)
from api.tools.tool_choice import OfferedFunctions
from engine.grammars.structural_tags import Format

TAG, ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


def mistral(out: ParserOutput, offered: OfferedFunctions) -> Steps:
    """Parse an answer: calls follow the tag; text may come before it."""
    del offered
    return calls_after_markers(out, _calls, TAG)


def _calls(out: ParserOutput) -> Steps:
    letter = yield from skip_space()
    if letter == "[":
        yield from call_list(out, letter, any_name)
    else:
        yield from _named(out, letter)


def _named(out: ParserOutput, letter: str) -> Steps:
    name = ""
    while letter in NAME_LETTERS:
        name += letter
        letter = yield
    letter = (yield from skip_space()) if letter in SPACE else letter
    if letter == "[":
        letter = yield
        if letter == ID[1]:
            yield from literal(letter, ID[1:])
            while (letter := (yield)) in NAME_LETTERS:
                pass
            letter = (yield from skip_space()) if letter in SPACE else letter
            yield from literal(letter, ARGS)
        else:
            yield from literal(letter, ARGS[1:])
        letter = yield from skip_space()
    if not name or letter != "{":
        raise NotACall
    out.start_call(name)
    yield from json_arguments(out, letter)
    out.end_call()


def write(tools: CallableTools) -> Format:
    """Format calls as the template does: newer ones have a mark before the arguments."""
    if ARGS in tools.template:
        return tools.calls(_written)
    return seq(tokens(TAG), "[", tools.calls(json_call_format, ", "), "]")


def _written(name: str, schema: Schema) -> Format:
    return seq(tokens(TAG), name, tokens(ARGS), arguments_format(schema))


MISTRAL = Dialect(
    mistral,
    write,
    (TAG, ID, ARGS),
    (TAG,),
    new_id=short_id,
    first_letters="[",
    start_markers=(TAG,),
)
