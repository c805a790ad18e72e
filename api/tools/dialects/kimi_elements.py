"""Calls as Kimi K3 writes them: in elements whose tags are made of special tokens, within a
section behind the text. Each argument says of which type it is; a string is plain text.

    <|open|>response<|sep|>I look.<|close|>response<|sep|>
    <|open|>tools<|sep|>
    <|open|>call tool="f" index="1"<|sep|>
    <|open|>argument key="a" type="number"<|sep|>1<|close|>argument<|sep|>
    <|close|>call<|sep|>
    <|close|>tools<|sep|>
    <|close|>message<|sep|>

There are no line breaks between tags. In attributes, `&` is `&amp;` and `"` is `&quot;`.
"""

import re
from collections.abc import Generator, Mapping
from functools import partial

from api.tools.call_formats import CallableTools, Schema, seq, tokens
from api.tools.dialects.dialect import Dialect
from api.tools.parsing.argument_types import ArgumentTypes
from api.tools.parsing.json_types import ANY_TYPE, STRING_ONLY
from api.tools.parsing.output import NotACall, ParserOutput, Steps
from api.tools.parsing.sections import SectionForm
from api.tools.parsing.steps import literal, skip_space, until
from api.tools.parsing.typed import TypedArguments
from api.tools.text_arguments import TYPES, TextArguments
from api.tools.tool_choice import OfferedFunctions
from engine.grammars.structural_tags import ConstString, Either, Format, Regex

OPEN, CLOSE, SEPARATOR = MARKERS = ("<|open|>", "<|close|>", "<|sep|>")
THINK, RESPONSE, TOOLS, MESSAGE = "think", "response", "tools", "message"
CALL, ARGUMENT, STRING = "call", "argument", "string"
TYPE_NAMES: Mapping[type, str] = {
    **{bool: "boolean", int: "number", float: "number"},
    **{list: "array", dict: "object", type(None): "null"},
}
ATTRIBUTES = re.compile(r'(?:\s+\w+="[^"]*")*\s*')
ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')


def opening(name: str) -> str:
    """The tag that opens an element without attributes."""
    return f"{OPEN}{name}{SEPARATOR}"


def closing(name: str) -> str:
    """The tag that closes an element."""
    return f"{CLOSE}{name}{SEPARATOR}"


WRAPPERS = opening(RESPONSE), closing(RESPONSE), closing(MESSAGE)


def kimi_k3(out: ParserOutput, offered: OfferedFunctions) -> Steps:
    """Parse an answer: text, of which the tags around it are no part, and sections."""
    call = partial(_call, types=ArgumentTypes(offered))
    form = SectionForm(
        (opening(TOOLS),), (closing(TOOLS),), f"{OPEN}{CALL}", call, wrappers=WRAPPERS
    )
    return form.parser()(out, offered)


def _call(out: ParserOutput, types: ArgumentTypes) -> Steps:
    if not (name := (yield from _attributes()).get("tool")):
        raise NotACall
    out.start_call(name)
    arguments = TypedArguments(out, name, types)
    while (yield from _goes_on()):
        attributes = yield from _attributes()
        if (key := attributes.get("key")) is None:
            raise NotACall
        is_text = attributes.get("type", STRING) == STRING
        types_here = STRING_ONLY if is_text else ANY_TYPE - STRING_ONLY
        yield from arguments.read_value(key, closing(ARGUMENT), types=types_here)
    arguments.end()
    out.end_call()


def _goes_on() -> Generator[None, str, bool]:
    """Whether one more argument follows, or the call's end; raises NotACall."""
    argument, end = f"{OPEN}{ARGUMENT}", closing(CALL)
    begun = "<|"
    yield from literal((yield from skip_space()), begun)
    letter = yield
    more = letter == OPEN[len(begun)]
    yield from literal(letter, (argument if more else end)[len(begun) :])
    return more


def _attributes() -> Generator[None, str, Mapping[str, str]]:
    """The attributes of a tag, up to its end; raises NotACall."""
    written = yield from until(SEPARATOR)
    if not ATTRIBUTES.fullmatch(written):
        raise NotACall
    return {
        name: value.replace("&quot;", '"').replace("&amp;", "&")
        for name, value in ATTRIBUTE.findall(written)
    }


def escape(value: str) -> str:
    """A text as the value of an attribute."""
    return value.replace("&", "&amp;").replace('"', "&quot;")


ARGUMENTS = TextArguments(
    f'{OPEN}{ARGUMENT} key="',
    f'" type="{STRING}"{SEPARATOR}',
    closing(ARGUMENT),
    f'" type="{TYPES}"{SEPARATOR}',
    tokens=MARKERS,
    type_names=TYPE_NAMES,
    spell_key=escape,
)


def write(tools: CallableTools) -> Format:
    """Format a section of calls; their numbers may be any that the model writes."""
    head, end = tokens(OPEN), tokens(CLOSE)
    calls = tools.calls(_written)
    return seq(head, TOOLS, tokens(SEPARATOR), calls, end, TOOLS, tokens(SEPARATOR))


def _written(name: str, schema: Schema) -> Format:
    head = seq(tokens(OPEN), f'{CALL} tool="{escape(name)}" index="', Regex("[0-9]{1,4}"), '"')
    inner = seq(tokens(SEPARATOR), ARGUMENTS.of(schema), tokens(CLOSE))
    return seq(head, inner, CALL, tokens(SEPARATOR))


KIMI_K3 = Dialect(
    kimi_k3,
    write,
    MARKERS,
    (OPEN, SEPARATOR),
    start_markers=(OPEN,),
    wrapper_tokens=(CLOSE, SEPARATOR),
    beside_calls=seq(Either((ConstString(RESPONSE), ConstString(THINK))), tokens(SEPARATOR)),
    before_calls=seq(tokens(CLOSE), RESPONSE, tokens(SEPARATOR)),
)
