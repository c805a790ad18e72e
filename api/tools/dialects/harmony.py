"""Calls as gpt-oss writes them: messages to functions, in OpenAI's Harmony.

    <|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>

What reads its channels (`api/reasoning/channels.py`) gives all headers of calls this form, and
leaves of other messages the text.
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
from api.tools.parsing.output import NotACall, ParserOutput, Steps, TextSteps
from api.tools.parsing.steps import calls_after_markers, json_arguments, skip_space
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
    """Each is named by its header: the client is told of it, offered or not."""
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
    """Comes to all of it; raises NotACall."""
    header = ""
    while not header.endswith(MESSAGE):
        header += yield
        if len(header) > LONGEST_HEADER:
            raise NotACall
    return header


def write_messages(tools: CallableTools, *, begun: bool) -> Format:
    """All of an answer: messages, the last of which may be a call. `begun`: it goes on in the
    middle of the first one.
    """
    channel = Either(tuple(map(ConstString, CHANNELS)))
    header = seq(tokens(CHANNEL), channel, Optional(_CONTENT_TYPE), tokens(MESSAGE))
    text, following = AnyText(MARKS), seq(Token(END), Token(START), "assistant")
    one_call = replace(tools, parallel=False).calls(_written)
    last = Either((seq(header, text), seq(_WHERE, f" {TO}", one_call)))
    answer = seq(Star(seq(header, text, *following.elements)), last)
    return Either((text, seq(text, *following.elements, answer))) if begun else answer


def _written(name: str, schema: Schema) -> Format:
    """The channel may stand behind the function, too."""
    return seq(name, _WHERE, Optional(_CONTENT_TYPE), tokens(MESSAGE), arguments_format(schema))


_WHERE = Optional(seq(tokens(CHANNEL), "commentary"))
_JSON = Either((ConstString("json"), ConstString("code")))
_PLAIN_TYPE = seq(" ", Optional(Token(CONSTRAIN)), _JSON)
_CONTENT_TYPE = Either((_PLAIN_TYPE, seq(Token(CONSTRAIN), _JSON)))
"""Of a message: behind a name it has to begin with something else."""
HARMONY = Dialect(
    harmony,
    None,
    (CHANNEL, MESSAGE, CONSTRAIN, CALL),
    ("<|channel|>commentary",),
    messages=write_messages,
)
