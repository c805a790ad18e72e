"""Calls as Llama 3.1 and its like write them: the whole answer is JSON.

    {"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}
    [{"name": "f", "parameters": {"a": 1}}, {"name": "g", "parameters": {}}]

An answer may be JSON without being a call, so only functions that were offered are called.
"""

from functools import partial

from api.tools.call_formats import (
    BLANKS,
    CallableTools,
    Schema,
    arguments_format,
    json_call_format,
    seq,
)
from api.tools.dialects.dialect import Dialect, UnmarkedCalls
from api.tools.parsing.call_objects import call_list, call_object
from api.tools.parsing.output import ParserOutput, Steps
from api.tools.parsing.steps import (
    attempt_call,
    content_until,
    offered_only,
    rest_as_content,
    skip_space,
)
from api.tools.tool_choice import OfferedFunctions
from engine.grammars.structural_tags import Format, Regex

TAG = "<|python_tag|>"
SEPARATORS = ";,"


def llama3_json(out: ParserOutput, offered: OfferedFunctions) -> Steps:
    """Parse an answer: calls begin it, or follow the tag."""
    while True:
        yield from attempt_call(out, _calls(out, offered), marked=False)
        yield from content_until(out, TAG)


def llama3_json_name_first(out: ParserOutput, offered: OfferedFunctions) -> Steps:
    """Parse an answer that begins with calls, each of which begins with its name."""
    yield from attempt_call(out, _calls(out, offered, name_first=True), marked=False)
    yield from rest_as_content(out)


def _calls(out: ParserOutput, offered: OfferedFunctions, *, name_first: bool = False) -> Steps:
    """Parse calls one after another, until something else comes, or a list of calls."""
    letter = yield from skip_space()
    if letter == "[" and not name_first:
        yield from call_list(out, letter, offered_only(offered))
        return
    while True:
        yield from call_object(out, letter, offered_only(offered), name_first=name_first)
        letter = yield from skip_space()
        if letter in SEPARATORS:
            letter = yield from skip_space()


def write(tools: CallableTools) -> Format:
    """Format objects, one after another."""
    return tools.calls(partial(json_call_format, key="parameters"), "; ")


def begins(name: str) -> str:
    """A regular expression that distinguishes a call from other JSON."""
    return rf'{BLANKS}\{{{BLANKS}"name"{BLANKS}:{BLANKS}"{name}"'


def write_name_first(tools: CallableTools) -> Format:
    """Format calls in the forms that models may write, with the name first."""
    comma, colon = Regex(f"{BLANKS},{BLANKS}"), Regex(f"{BLANKS}:{BLANKS}")

    def written(name: str, schema: Schema) -> Format:
        inner = seq(Regex(begins(name)), comma, '"parameters"', colon, arguments_format(schema))
        return seq(inner, Regex(rf"{BLANKS}\}}"))

    return tools.calls(written, ";")


LLAMA = Dialect(
    llama3_json,
    write,
    (TAG,),
    ("<|start_header_id|>", '"parameters": '),
    ("<tool_call>",),
    first_letters=None,
    unmarked=UnmarkedCalls(begins, write_name_first, (TAG,)),
    strict_parser=llama3_json_name_first,
)
