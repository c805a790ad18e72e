"""Calls as Qwen3-Coder and Seed-OSS write them: arguments are text, and the schema says what
they mean.

<tool_call>
<function=f>
<parameter=a>
1
</parameter>
</function>
</tool_call>

Seed-OSS has tags of its own around them, and no line breaks around values.
"""

from functools import partial

from api.tools.call_formats import CallableTools, Schema, seq, tokens
from api.tools.dialects.dialect import Dialect
from api.tools.parsing.argument_types import ArgumentTypes
from api.tools.parsing.output import NotACall, Parser, ParserOutput, Steps
from api.tools.parsing.steps import (
    TAG,
    any_name,
    calls_after_markers,
    literal,
    skip_space,
    word_until,
)
from api.tools.parsing.typed import TypedArguments
from api.tools.text_arguments import TextArguments
from api.tools.tool_choice import OfferedFunctions
from engine.grammars.structural_tags import Format

TAGS = "<tool_call>", "</tool_call>"
SEED_TAGS = "<seed:tool_call>", "</seed:tool_call>"
FUNCTION, PARAMETER = "function=", "parameter="
END_OF_FUNCTION, END_OF_PARAMETER = "/function>", "</parameter>"


def _parser(opens: str, closes: str) -> Parser:
    def parse(out: ParserOutput, offered: OfferedFunctions) -> Steps:
        """Parse an answer: each call has its own tags; text may come between calls."""
        call = partial(_call, types=ArgumentTypes(offered), closes=closes)
        return calls_after_markers(out, call, opens)

    return parse


def _call(out: ParserOutput, types: ArgumentTypes, closes: str) -> Steps:
    """Parse what follows the opening tag: functions, mostly one, and the closing tag."""
    yield from literal((yield from skip_space()), TAG)
    letter = yield
    while True:
        yield from literal(letter, FUNCTION)
        yield from _function(out, types)
        yield from literal((yield from skip_space()), TAG)
        if (letter := (yield)) == closes[1]:
            break
    yield from literal(letter, closes[1:])
    out.drop_held()


def _function(out: ParserOutput, types: ArgumentTypes) -> Steps:
    name = yield from word_until(">")
    if not any_name(name):
        raise NotACall
    out.start_call(name)
    yield from _arguments(TypedArguments(out, name, types))
    out.end_call()


def _arguments(arguments: TypedArguments) -> Steps:
    while True:
        yield from literal((yield from skip_space()), TAG)
        letter = yield
        if letter == END_OF_FUNCTION[0]:
            yield from literal(letter, END_OF_FUNCTION)
            arguments.end()
            return
        yield from literal(letter, PARAMETER)
        key = yield from arguments.read_key(">")
        yield from arguments.read_value(key, END_OF_PARAMETER, lines=True)


qwen3_coder, seed_oss = _parser(*TAGS), _parser(*SEED_TAGS)


def write(tools: CallableTools) -> Format:
    """Format calls of Qwen3-Coder, with each value on its own lines."""
    return _write(tools, TAGS, TextArguments("<parameter=", ">\n", "\n</parameter>\n"))


def write_seed(tools: CallableTools) -> Format:
    """Format calls of Seed-OSS, without line breaks around values."""
    texts = TextArguments("<parameter=", ">", "</parameter>\n", line="\n")
    return _write(tools, SEED_TAGS, texts)


def _write(tools: CallableTools, tags: tuple[str, str], texts: TextArguments) -> Format:
    def written(name: str, schema: Schema) -> Format:
        inner = seq(f"\n<function={name}>\n", texts.of(schema), "</function>\n")
        return seq(tokens(tags[0]), inner, tokens(tags[1]))

    return tools.calls(written, "\n")


SIGNS = (TAGS[0], f"<{FUNCTION}", f"<{PARAMETER}")
QWEN = Dialect(qwen3_coder, write, TAGS, SIGNS, start_markers=TAGS[:1])
SEED = Dialect(seed_oss, write_seed, SEED_TAGS, SEED_TAGS[:1], start_markers=SEED_TAGS[:1])
