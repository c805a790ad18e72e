"""Calls as Hy3 writes them: in a section, with pairs of texts as arguments, of which the schema
says what they mean. All tags have a word of their own.

    <tool_calls:opensource>
    <tool_call:opensource>f<tool_sep:opensource>
    <arg_key:opensource>a</arg_key:opensource>
    <arg_value:opensource>1</arg_value:opensource>
    </tool_call:opensource>
    </tool_calls:opensource>
"""

from collections.abc import Generator
from functools import partial

from api.tools.call_formats import CallableTools, Schema, seq, tokens
from api.tools.dialects.dialect import Dialect
from api.tools.parsing.argument_types import ArgumentTypes
from api.tools.parsing.output import ParserOutput, Steps
from api.tools.parsing.sections import SectionForm
from api.tools.parsing.steps import literal, name_until, skip_space
from api.tools.parsing.typed import TypedArguments
from api.tools.text_arguments import TextArguments
from api.tools.tool_choice import OfferedFunctions
from engine.grammars.structural_tags import Format

NAMES = "tool_calls", "tool_call", "arg_key", "arg_value"
SECTION, CALL, KEY, VALUE = (f"<{one}:opensource>" for one in NAMES)
END_OF_SECTION, END, END_OF_KEY, END_OF_VALUE = (f"</{one}:opensource>" for one in NAMES)
SEPARATOR = "<tool_sep:opensource>"
MARKERS = (SECTION, END_OF_SECTION, CALL, END, SEPARATOR, KEY, END_OF_KEY, VALUE, END_OF_VALUE)


def hy3(out: ParserOutput, offered: OfferedFunctions) -> Steps:
    """Parse an answer: text may come around sections."""
    call = partial(_call, types=ArgumentTypes(offered))
    return SectionForm((SECTION,), (END_OF_SECTION,), CALL, call).parser()(out, offered)


def _call(out: ParserOutput, types: ArgumentTypes) -> Steps:
    name = yield from name_until((yield from skip_space()), SEPARATOR)
    out.start_call(name)
    arguments = TypedArguments(out, name, types)
    while (yield from _goes_on()):
        key = yield from arguments.read_key(END_OF_KEY)
        yield from literal((yield from skip_space()), VALUE)
        yield from arguments.read_value(key, END_OF_VALUE)
    arguments.end()
    out.end_call()


def _goes_on() -> Generator[None, str, bool]:
    """Whether one more argument follows, or the call's end; raises NotACall."""
    yield from literal((yield from skip_space()), "<")
    letter = yield
    more = letter != "/"
    yield from literal(letter, (KEY if more else END)[1:])
    return more


def write(tools: CallableTools) -> Format:
    """Format a section, with line breaks if the template has them."""
    texts = TextArguments(KEY, f"{END_OF_KEY}\n{VALUE}", f"{END_OF_VALUE}\n")

    def written(name: str, schema: Schema) -> Format:
        head = seq(tokens(CALL), name, tokens(SEPARATOR), "\n")
        return seq(head, texts.of(schema), tokens(END), "\n")

    return seq(tokens(SECTION), "\n", tools.calls(written), tokens(END_OF_SECTION))


SIGNS = ("<tool_sep", ":opensource")
SPELT = (KEY, END_OF_KEY, VALUE, END_OF_VALUE)
HY3 = Dialect(hy3, write, MARKERS, SIGNS, start_markers=(SECTION,), text_markers=SPELT)
