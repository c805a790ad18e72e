"""Calls as Kimi K2 writes them, in a section; each has a name of its own, which its function's
name and a number are.

    <|tool_calls_section_begin|>
    <|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>
    <|tool_calls_section_end|>

The number is that of the call in the conversation, from 0. Its template writes calls and their
results with these names alone, so clients get them as they are.
(https://github.com/MoonshotAI/Kimi-K2/blob/main/docs/tool_call_guidance.md)
"""

from api.tools.call_formats import (
    CallableTools,
    Schema,
    arguments_format,
    seq,
    tokens,
)
from api.tools.dialects.dialect import Dialect
from api.tools.parsing.output import NotACall, ParserOutput, Steps
from api.tools.parsing.sections import SectionForm, read_json_call
from api.tools.parsing.steps import NAME_LETTERS, name_until, skip_space
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


def _call(out: ParserOutput) -> Steps:
    own_id = yield from name_until((yield from skip_space()), ARGUMENTS, NAME_LETTERS | {":"})
    name, _, number = own_id.rpartition(":")
    name = name.removeprefix(NAMESPACE)
    if not name or not number.isdigit():
        raise NotACall
    yield from read_json_call(out, name, END, own_id=own_id)


def new_id(name: str, number: int) -> str:
    """The id that the model itself would give the call."""
    return f"{NAMESPACE}{name}:{number}"


kimi_k2 = SectionForm(OPENS, CLOSES, CALL, _call).parser()


def write(tools: CallableTools) -> Format:
    """Format a section of calls; their numbers may be any that the model writes."""
    return seq(tokens(OPENS[0]), tools.calls(_written), tokens(CLOSES[0]))


def _written(name: str, schema: Schema) -> Format:
    own_id = seq(f"{NAMESPACE}{name}:", Regex("[0-9]+"))
    return seq(tokens(CALL), own_id, tokens(ARGUMENTS), arguments_format(schema), tokens(END))


KIMI = Dialect(kimi_k2, write, MARKERS, (ARGUMENTS,), new_id=new_id, start_markers=OPENS)
