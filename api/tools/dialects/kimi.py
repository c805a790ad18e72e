"""Calls as Kimi K2 writes them, in a section; each has a name of its own, which its function's
name and a number are.

    <|tool_calls_section_begin|>
    <|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>
    <|tool_calls_section_end|>

The number is that of the call in the conversation, from 0. Its template writes calls and their
results with these names alone, so clients get them as they are.
(https://github.com/MoonshotAI/Kimi-K2/blob/main/docs/tool_call_guidance.md)
"""

from api.tools.parsing.sections import SectionForm, json_call
from api.tools.parsing.steps import NAME_LETTERS, name_until, space
from api.tools.parsing.tape import NotACall, Steps, Tape

OPENS = "<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"
CLOSES = "<|tool_calls_section_end|>", "<|tool_call_section_end|>"
"""Some models leave the plural out."""
CALL, ARGUMENTS, END = (
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
MARKERS = (*OPENS, *CLOSES, CALL, ARGUMENTS, END)
NAMESPACE = "functions."


def _call(tape: Tape) -> Steps:
    own_id = yield from name_until((yield from space()), ARGUMENTS, NAME_LETTERS | {":"})
    name, _, number = own_id.rpartition(":")
    name = name.removeprefix(NAMESPACE)
    if not name or not number.isdigit():
        raise NotACall
    yield from json_call(tape, name, END, own_id=own_id)


def new_id(name: str, number: int) -> str:
    """What the model itself would call it."""
    return f"{NAMESPACE}{name}:{number}"


kimi_k2 = SectionForm(OPENS, CLOSES, CALL, _call).parser()
