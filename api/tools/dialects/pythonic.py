"""Calls in Python, as many models write them: in a list, with marks around it or none, or one
on each line.

<|tool_call_start|>[f(a="x", b=1), g()]<|tool_call_end|>        LFM2
[f(a="x", b=1), g()]                                             Llama 3.2, ToolACE
<|python_start|>[f(a="x", b=1), g()]<|python_end|>               Llama 4, or bare
<function_calls>
f(a="x", b=1)
g()
</function_calls>                                                Olmo 3

What stands in no marks could be an answer, and behind Llama's is Python of any kind: only
functions that were offered are called there.
"""

import re
import string
from dataclasses import replace
from functools import partial

from api.tools.call_formats import (
    BLANKS,
    CallableTools,
    Schema,
    argument_format,
    input_as_json,
    members_format,
    object_format,
    seq,
    tokens,
)
from api.tools.dialects.dialect import Dialect, UnmarkedCalls
from api.tools.parsing.argument_types import ArgumentTypes
from api.tools.parsing.keys import key_until
from api.tools.parsing.output import SPACE, NotACall, ParserOutput, Steps
from api.tools.parsing.python_values import python_value
from api.tools.parsing.steps import (
    NAME_LETTERS,
    Accepts,
    any_name,
    attempt_call,
    calls_after_markers,
    literal,
    name_until,
    offered_only,
    rest_as_content,
    skip_space,
)
from api.tools.parsing.typed import json_text
from api.tools.tool_choice import OfferedFunctions
from engine.grammars.structural_tags import (
    Format,
    JsonSchema,
    Regex,
    Star,
)

OPENS, CLOSES = "<|tool_call_start|>", "<|tool_call_end|>"
PYTHON, END_OF_PYTHON = "<|python_start|>", "<|python_end|>"
LINES, END_OF_LINES = "<function_calls>", "</function_calls>"
ANY_KEY = "[A-Za-z_][A-Za-z0-9_]*"
SIGNS = "<|tool_", "_start|>"  # the beginning of a call, or of the list of tools
SHOWN = "[func_name1("  # what templates tell models to write
LLAMA_4 = "<|header_start|>"
KEY_LETTERS = frozenset(string.ascii_letters + string.digits + "_-$")


def lfm2(out: ParserOutput, offered: OfferedFunctions) -> Steps:
    """Parse an answer: a list of calls follows the mark; text may come before it."""
    types = ArgumentTypes(offered)
    listed = partial(_listed, closes=CLOSES, accepts=any_name, types=types)
    return calls_after_markers(out, listed, OPENS)


def pythonic(out: ParserOutput, offered: OfferedFunctions) -> Steps:
    """Parse an answer that is a list of calls."""
    yield from attempt_call(out, _bare(out, offered), marked=False)
    yield from rest_as_content(out)


def llama4(out: ParserOutput, offered: OfferedFunctions) -> Steps:
    """Parse an answer: a list of calls begins it, or follows the mark."""
    yield from attempt_call(out, _bare(out, offered), marked=False)
    types, accepts = ArgumentTypes(offered), offered_only(offered)
    listed = partial(_listed, closes=END_OF_PYTHON, accepts=accepts, types=types)
    yield from calls_after_markers(out, listed, PYTHON)


def olmo3(out: ParserOutput, offered: OfferedFunctions) -> Steps:
    """Parse an answer: calls stand between two marks; text may come before the first."""
    return calls_after_markers(out, partial(_lines, types=ArgumentTypes(offered)), LINES)


def _bare(out: ParserOutput, offered: OfferedFunctions) -> Steps:
    """Parse a list without marks; its first letter may have been read already."""
    letter = out.held.strip(SPACE) or (yield from skip_space())
    yield from _list(out, letter, offered_only(offered), ArgumentTypes(offered))


def _listed(out: ParserOutput, closes: str, accepts: Accepts, types: ArgumentTypes) -> Steps:
    """Parse a list of calls; the closing mark may be missing."""
    yield from _list(out, (yield from skip_space()), accepts, types)
    yield from literal((yield from skip_space()), closes)
    out.drop_held()


def _list(out: ParserOutput, letter: str, accepts: Accepts, types: ArgumentTypes) -> Steps:
    yield from literal(letter, "[")
    letter = ","
    while letter == ",":
        yield from _call(out, (yield from skip_space()), accepts, types)
        letter = yield from skip_space()
    yield from literal(letter, "]")
    out.drop_held()


def _lines(out: ParserOutput, types: ArgumentTypes) -> Steps:
    letter = yield from skip_space()
    while True:
        yield from _call(out, letter, any_name, types)
        if (letter := (yield from skip_space())) == END_OF_LINES[0]:
            break
    yield from literal(letter, END_OF_LINES)
    out.drop_held()


def _call(out: ParserOutput, letter: str, accepts: Accepts, types: ArgumentTypes) -> Steps:
    name = yield from name_until(letter, "(", NAME_LETTERS)
    if not accepts(name):
        raise NotACall
    out.start_call(name)
    before, known = "{", types.properties(name)
    letter = yield from skip_space()
    while letter != ")":
        key = yield from key_until(letter, "=", known, KEY_LETTERS)
        value, letter = yield from python_value((yield from skip_space()))
        out.add_arguments(f"{before}{json_text(key)}: {value}")
        before = ", "
        letter = (yield from skip_space()) if letter == "," else letter
    out.add_arguments("{}" if before == "{" else "}")
    out.end_call()


def write(tools: CallableTools) -> Format:
    """Format a list between marks. Values are JSON, which is Python except for constants."""
    return seq(tokens(OPENS), write_bare(tools), tokens(CLOSES))


def write_bare(tools: CallableTools) -> Format:
    """Format a list alone, as templates show it."""
    return seq("[", tools.calls(_written, ", "), "]")


def begins(name: str) -> str:
    """A regular expression that distinguishes a list of calls from lists that are text."""
    return rf"{BLANKS}\[{BLANKS}{re.escape(name)}{BLANKS}\("


def write_begun(tools: CallableTools) -> Format:
    """Format a list alone, with any beginning that models may write."""

    def first(name: str, schema: Schema) -> Format:
        return seq(Regex(begins(name)), _arguments(schema), ")")

    one = replace(tools, parallel=False)
    others = [Star(seq(", ", one.calls(_written)))] if tools.parallel else []
    return seq(one.calls(first), *others, "]")


def write_lines(tools: CallableTools) -> Format:
    """Format calls, one on each line."""
    return seq(tokens(LINES), tools.calls(_written, "\n"), tokens(END_OF_LINES))


def _written(name: str, schema: Schema) -> Format:
    return seq(f"{name}(", _arguments(schema), ")")


def _arguments(schema: Schema) -> Format:
    return object_format(schema, lambda way: _members(way, schema))


def _members(plain: Schema, root: Schema) -> Format:
    value = _value(plain.get("additionalProperties", True), root)
    anything = seq(Regex(ANY_KEY), "=", value)
    return members_format(
        plain, lambda key, one: seq(f"{key}=", _value(one, root)), anything, ", "
    )


def _value(schema: object, root: Schema) -> Format:
    return input_as_json(root) or argument_format(schema, root) or JsonSchema(json_schema=True)


LFM2 = Dialect(lfm2, write, (OPENS, CLOSES), SIGNS, start_markers=(OPENS,))
PYTHONIC = Dialect(
    pythonic,
    write_bare,
    (),
    (SHOWN,),
    (LLAMA_4,),
    first_letters="[",
    unmarked=UnmarkedCalls(begins, write_begun),
)
LLAMA4 = Dialect(
    llama4,
    write_bare,
    (PYTHON, END_OF_PYTHON),
    (SHOWN, LLAMA_4),
    first_letters="[<",
    unmarked=UnmarkedCalls(begins, write_begun, (PYTHON,)),
    strict_parser=pythonic,
)
OLMO3 = Dialect(
    olmo3, write_lines, (LINES, END_OF_LINES), (LINES,), ("<invoke ",), start_markers=(LINES,)
)
