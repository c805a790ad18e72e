"""Calls as Kimi K2 writes them, in a section; each has a name of its own, which its function's
name and a number are.

    <|tool_calls_section_begin|>
    <|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>
    <|tool_calls_section_end|>

The number is that of the call in the conversation, from 0. Its template writes calls and their
results with these names alone, so clients get them as they are. Some calls have just a number,
as `3` or `call00003`: their arguments show which function they are of.
(https://github.com/MoonshotAI/Kimi-K2/blob/main/docs/tool_call_guidance.md)
"""

import re
from collections.abc import Collection
from functools import partial

from api.tools.call_formats import (
    CallableTools,
    Schema,
    arguments_format,
    seq,
    tokens,
)
from api.tools.dialects.dialect import Dialect
from api.tools.parsing.call_objects import buffered_arguments
from api.tools.parsing.json_text import json_value
from api.tools.parsing.output import NotACall, ParserOutput, Steps
from api.tools.parsing.sections import SectionForm, read_json_call
from api.tools.parsing.steps import NAME_LETTERS, literal, name_until, skip_space
from api.tools.parsing.ways import properties_of, required_of
from api.tools.tool_choice import OfferedFunctions
from engine.grammars.structural_tags import Format, Regex

OPENS = "<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"
CLOSES = "<|tool_calls_section_end|>", "<|tool_call_section_end|>"
"""Some models write the markers in the singular."""
CALL, ARGUMENTS, END = (
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
MARKERS = (*OPENS, *CLOSES, CALL, ARGUMENTS, END)
NAMESPACE = "functions."
NUMBER_ALONE = re.compile("(call)?[0-9]+")


def kimi_k2(out: ParserOutput, offered: OfferedFunctions) -> Steps:
    """Parse an answer: sections of calls, with text around them."""
    call = partial(_call, offered=offered)
    return SectionForm(OPENS, CLOSES, CALL, call).parser()(out, offered)


def _call(out: ParserOutput, offered: OfferedFunctions) -> Steps:
    own_id = yield from name_until((yield from skip_space()), ARGUMENTS, NAME_LETTERS | {":"})
    name, _, number = own_id.rpartition(":")
    name = name.removeprefix(NAMESPACE)
    if name and number.isdigit():
        yield from read_json_call(out, name, END, own_id=own_id)
    elif NUMBER_ALONE.fullmatch(own_id):
        yield from _call_without_name(out, offered)
    else:
        raise NotACall


def _call_without_name(out: ParserOutput, offered: OfferedFunctions) -> Steps:
    """Parse a call of the one function that takes its arguments; it gets an id as it should
    have.
    """
    arguments = yield from buffered_arguments((yield from skip_space()))
    keys = json_value(arguments).keys()
    fitting = [name for name, one in offered.items() if _takes(one.parameters or {}, keys)]
    if len(fitting) != 1:
        raise NotACall
    out.start_call(fitting[0])
    out.add_arguments(arguments)
    out.end_call()
    yield from literal((yield from skip_space()), END)
    out.drop_held()


def _takes(schema: Schema, keys: Collection[str]) -> bool:
    return {*required_of(schema)} <= {*keys} <= {*properties_of(schema)}


def new_id(name: str, number: int) -> str:
    """The id that the model itself would give the call."""
    return f"{NAMESPACE}{name}:{number}"


def write(tools: CallableTools) -> Format:
    """Format a section of calls; their numbers may be any that the model writes."""
    return seq(tokens(OPENS[0]), tools.calls(_written), tokens(CLOSES[0]))


def _written(name: str, schema: Schema) -> Format:
    own_id = seq(f"{NAMESPACE}{name}:", Regex("[0-9]+"))
    return seq(tokens(CALL), own_id, tokens(ARGUMENTS), arguments_format(schema), tokens(END))


KIMI = Dialect(kimi_k2, write, MARKERS, (ARGUMENTS,), new_id=new_id, start_markers=OPENS)
