"""Calls in gpt-oss's format: messages to functions, in OpenAI's Harmony format.

    <|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>

The reader of its channels (`api/reasoning/channels.py`) gives all headers of calls this form,
and keeps only the text of other messages.
"""

from dataclasses import replace

from api.tools.call_formats import (
    CallableTools,
    Schema,
    arguments_format,
    seq,
    tokens,
)
from api.tools.dialects.dialect import Dialect
from api.tools.parsing.call_objects import json_arguments
from api.tools.parsing.output import NotACall, ParserOutput, Steps, TextSteps
from api.tools.parsing.steps import calls_after_markers, skip_space
from api.tools.tool_choice import OfferedFunctions
from engine.grammars.structural_tags import (
    AnyText,
    ConstString,
    Either,
    Format,
    Optional,
    Star,
    Token,
)

CHANNEL, MESSAGE, CONSTRAIN = "<|channel|>", "<|message|>", "<|constrain|>"
START, END, CALL = "<|start|>", "<|end|>", "<|call|>"
ENDS = (END, CALL, "<|return|>", START, CHANNEL)
MARKS = (*ENDS, MESSAGE, CONSTRAIN)
CHANNELS = ("analysis", "commentary", "final")
TO = "to=functions."
FUNCTION = f"{CHANNEL}commentary {TO}"
LONGEST_HEADER = 400  # characters


def harmony(out: ParserOutput, offered: OfferedFunctions) -> Steps:
    """Parse an answer. A call's header names its function; the client gets calls of any
    function, offered or not.
    """
    del offered
    return calls_after_markers(out, _call, FUNCTION)


def _call(out: ParserOutput) -> Steps:
    header = yield from _header()
    name = header.removesuffix(MESSAGE).partition("<")[0].strip()
    if not name:
        raise NotACall
    out.start_call(name)
    yield from json_arguments(out, (yield from skip_space()))
    out.end_call()


def _header() -> TextSteps:
    """Returns the whole header; raises NotACall."""
    header = ""
    while not header.endswith(MESSAGE):
        header += yield
        if len(header) > LONGEST_HEADER:
            raise NotACall
    return header


def write_messages(tools: CallableTools, *, begun: bool) -> Format:
    """The grammar of a whole answer: messages, the last of which may be a call. `begun`: it
    begins in the middle of a message.
    """
    channel = Either(tuple(map(ConstString, CHANNELS)))
    header = seq(tokens(CHANNEL), channel, Optional(_CONTENT_TYPE), tokens(MESSAGE))
    text, following = AnyText(MARKS), seq(Token(END), Token(START), "assistant")
    one_call = replace(tools, parallel=False).calls(_written)
    last = Either((seq(header, text), seq(_WHERE, f" {TO}", one_call)))
    answer = seq(Star(seq(header, text, *following.elements)), last)
    return Either((text, seq(text, *following.elements, answer))) if begun else answer


def _written(name: str, schema: Schema) -> Format:
    """A call; its channel may also come after the function."""
    return seq(name, _WHERE, Optional(_CONTENT_TYPE), tokens(MESSAGE), arguments_format(schema))


_WHERE = Optional(seq(tokens(CHANNEL), "commentary"))
_JSON = Either((ConstString("json"), ConstString("code")))
_PLAIN_TYPE = seq(" ", Optional(Token(CONSTRAIN)), _JSON)
_CONTENT_TYPE = Either((_PLAIN_TYPE, seq(Token(CONSTRAIN), _JSON)))
"""The content type of a message: directly after a name it has to begin differently."""
HARMONY = Dialect(
    harmony,
    None,
    (CHANNEL, MESSAGE, CONSTRAIN, CALL),
    ("<|channel|>commentary",),
    messages=write_messages,
)
