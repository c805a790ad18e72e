"""Calls as Apertus writes them: a list of JSON between marks, of objects with one key each, the
function's name.

    <|tools_prefix|>[{"f": {"a": 1}}, {"g": {}}]<|tools_suffix|>
"""

from api.tools.call_formats import CallableTools, Schema, arguments_format, seq, tokens
from api.tools.dialects.dialect import Dialect
from api.tools.parsing.call_objects import buffered_arguments, json_arguments
from api.tools.parsing.output import NotACall, ParserOutput, Steps
from api.tools.parsing.steps import calls_after_markers, json_string, literal, skip_space
from api.tools.tool_choice import OfferedFunctions
from engine.grammars.structural_tags import Format

OPENS, CLOSES = "<|tools_prefix|>", "<|tools_suffix|>"


def apertus(out: ParserOutput, offered: OfferedFunctions) -> Steps:
    """Parse an answer: text may come around lists of calls."""
    del offered
    return calls_after_markers(out, _calls, OPENS)


def _calls(out: ParserOutput) -> Steps:
    yield from literal((yield from skip_space()), "[")
    letter = ","
    while letter == ",":
        yield from _call(out)
        letter = yield from skip_space()
    yield from literal(letter, "]")
    out.drop_held()
    yield from literal((yield from skip_space()), CLOSES)
    out.drop_held()


def _call(out: ParserOutput) -> Steps:
    """Parse an object of one key; raises NotACall."""
    yield from literal((yield from skip_space()), "{")
    name = yield from json_string((yield from skip_space()))
    yield from literal((yield from skip_space()), ":")
    letter = yield from skip_space()
    if not name:
        raise NotACall
    if letter == "{":
        out.start_call(name)
        yield from json_arguments(out, letter)
    else:
        arguments = yield from buffered_arguments(letter)
        out.start_call(name)
        out.add_arguments(arguments)
    yield from literal((yield from skip_space()), "}")
    out.end_call()


def write(tools: CallableTools) -> Format:
    """Format a list of calls."""
    return seq(tokens(OPENS), "[", tools.calls(_written, ", "), "]", tokens(CLOSES))


def _written(name: str, schema: Schema) -> Format:
    return seq(f'{{"{name}": ', arguments_format(schema), "}")


APERTUS = Dialect(apertus, write, (OPENS, CLOSES), (OPENS,), start_markers=(OPENS,))
