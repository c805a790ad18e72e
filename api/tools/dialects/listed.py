"""Calls as a list of JSON between marks, as many models write them:

<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]                        Granite 3
<tool_call>[{"name": "f", "arguments": {"a": 1}}]                          Granite 3.1, too
<TOOLCALL>[{"name": "f", "arguments": {"a": 1}}]</TOOLCALL>                Nemotron Nano 2
<tool_calls>[{"name": "f", "arguments": {"a": 1}}]</tool_calls>            Apriel
functools[{"name": "f", "arguments": {"a": 1}}]                            Phi-4 mini
<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {"a": 1}}]<|END_ACTION|>
                                                                           Command R7B and A
"""

from functools import partial

from api.tools.call_formats import (
    CallableTools,
    Schema,
    arguments_format,
    json_call_format,
    seq,
    tokens,
)
from api.tools.dialects.dialect import Dialect
from api.tools.parsing.call_objects import call_list, call_object
from api.tools.parsing.output import Parser, ParserOutput, Steps
from api.tools.parsing.steps import any_name, calls_after_markers, literal, skip_space
from api.tools.tool_choice import OfferedFunctions
from engine.grammars.structural_tags import Format, Regex

FUNCTOOLS, WHOLE_MARK = "functools", "functools["  # Python has a module of that name
ACTION, END_OF_ACTION = "<|START_ACTION|>", "<|END_ACTION|>"
RESPONSE, END_OF_RESPONSE = "<|START_RESPONSE|>", "<|END_RESPONSE|>"


def _parser(*opens: str, closes: str = "") -> Parser:
    def parse(out: ParserOutput, offered: OfferedFunctions) -> Steps:
        """Parse an answer: calls follow one of the marks; text may come before it."""
        del offered
        return calls_after_markers(out, partial(_calls, closes=closes), *opens)

    return parse


def _calls(out: ParserOutput, closes: str) -> Steps:
    """Parse a list of calls; its brackets and the closing mark may be missing."""
    letter = yield from skip_space()
    letter = (yield from skip_space()) if letter == "[" else letter
    yield from call_object(out, letter, any_name)
    while (letter := (yield from skip_space())) == ",":
        yield from call_object(out, (yield from skip_space()), any_name)
    if letter == "]":
        out.drop_held()
    if closes:
        letter = (yield from skip_space()) if letter == "]" else letter
        yield from literal(letter, closes)
        out.drop_held()


def functools(out: ParserOutput, offered: OfferedFunctions) -> Steps:
    """Parse an answer; here the beginning of the list is part of the mark."""
    del offered
    return calls_after_markers(
        out, partial(call_list, letter="[", accepts=any_name), WHOLE_MARK
    )


def _write_functools(tools: CallableTools) -> Format:
    return seq(tokens(WHOLE_MARK), tools.calls(json_call_format, ", "), "]")


def _write(opens: str, closes: str, tools: CallableTools) -> Format:
    inner = seq(tokens(opens), "[", tools.calls(json_call_format, ", "), "]")
    return seq(inner, tokens(closes)) if closes else inner


def _dialect(opens: str, closes: str, sign: str) -> Dialect:
    marked = tuple(filter(None, (opens, closes)))
    writing = partial(_write, opens, closes)
    parser = _parser(opens, closes=closes)
    return Dialect(parser, writing, marked, (sign,), start_markers=(opens,))


def _write_actions(tools: CallableTools) -> Format:
    inner = seq("[\n    ", tools.calls(_action, ",\n    "), "\n]")
    return seq(tokens(ACTION), inner, tokens(END_OF_ACTION))


def _action(name: str, schema: Schema) -> Format:
    own_id = seq('{"tool_call_id": "', Regex("[0-9]{1,4}"), '"')
    return seq(
        own_id, f', "tool_name": "{name}", "parameters": ', arguments_format(schema), "}"
    )


GRANITE_MARKS = "<|tool_call|>", "<tool_call>"  # the first is a token, and in the template
GRANITE = Dialect(
    _parser(*GRANITE_MARKS),
    partial(_write, GRANITE_MARKS[0], ""),
    GRANITE_MARKS,
    (GRANITE_MARKS[0],),
    start_markers=GRANITE_MARKS,
)
NEMOTRON = _dialect("<TOOLCALL>", "</TOOLCALL>", "<TOOLCALL>[")
APRIEL = _dialect("<tool_calls>", "</tool_calls>", "<tool_calls>[")
PHI = Dialect(
    _parser(FUNCTOOLS),
    _write_functools,
    (),
    (WHOLE_MARK,),
    first_letters=FUNCTOOLS[0],
    start_markers=(WHOLE_MARK,),
    strict_parser=functools,
)
COMMAND = Dialect(
    _parser(ACTION, closes=END_OF_ACTION),
    _write_actions,
    (ACTION, END_OF_ACTION),
    (ACTION, "tool_name"),
    start_markers=(ACTION,),
    wrapper_tokens=(RESPONSE, END_OF_RESPONSE),
)
