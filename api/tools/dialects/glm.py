"""Calls as GLM-4.5 and later ones write them: arguments are pairs of texts, and the schema says
what they mean.

    <tool_call>f
    <arg_key>a</arg_key>
    <arg_value>1</arg_value>
    </tool_call>

GLM-4.7 writes no line breaks; here they may be anywhere between tags. In LongCat's tags there
is a word of its own. Its first models write JSON in them:

    <longcat_tool_call>
    {"name": "f", "arguments": {"a": 1}}
    </longcat_tool_call>
"""

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial

from api.tools.call_formats import CallableTools, Schema, seq, tokens
from api.tools.dialects.dialect import Dialect
from api.tools.dialects.hermes import ObjectForm
from api.tools.parsing.argument_types import ArgumentTypes
from api.tools.parsing.output import ParserOutput, Steps
from api.tools.parsing.steps import (
    calls_after_markers,
    literal,
    name_until,
    skip_space,
)
from api.tools.parsing.typed import TypedArguments
from api.tools.text_arguments import TextArguments
from api.tools.tool_choice import OfferedFunctions
from engine.grammars.structural_tags import Format


@dataclass(frozen=True, slots=True)
class PairForm:
    """The syntax of calls; `word` is in all tags. A call may be an `object` instead."""

    word: str = ""
    object: ObjectForm | None = None

    @property
    def markers(self) -> tuple[str, ...]:
        """The opening and closing tags of calls, keys and values."""
        names = [f"{self.word}{one}" for one in ("tool_call", "arg_key", "arg_value")]
        return tuple(f"<{slash}{one}>" for one in names for slash in ("", "/"))

    def parser(self, out: ParserOutput, offered: OfferedFunctions) -> Steps:
        """Parse an answer: each call has its own tags; text may come between calls."""
        types = ArgumentTypes(offered)
        return calls_after_markers(out, partial(self._call, types=types), self.markers[0])

    def _call(self, out: ParserOutput, types: ArgumentTypes) -> Steps:
        letter = yield from skip_space()
        if self.object and letter == "{":
            return (yield from self.object.call(out, letter))
        _, _, _, end_of_key, value, end_of_value = self.markers
        name = yield from name_until(letter, "<")
        goes_on = yield from self._goes_on((yield))
        out.start_call(name)
        arguments = TypedArguments(out, name, types)
        while goes_on:
            key = yield from arguments.read_key(end_of_key)
            yield from literal((yield from skip_space()), value)
            yield from arguments.read_value(key, end_of_value)
            yield from literal((yield from skip_space()), "<")
            goes_on = yield from self._goes_on((yield))
        arguments.end()
        out.end_call()

    def _goes_on(self, letter: str) -> Generator[None, str, bool]:
        """After `<`: whether one more argument follows, or the call's end; raises NotACall."""
        _, closes, key, *_ = self.markers
        more = letter != "/"
        yield from literal(letter, (key if more else closes)[1:])
        return more

    def write(self, tools: CallableTools) -> Format:
        """Format calls, with line breaks if the template has them."""
        opens, closes, key, end_of_key, value, end_of_value = self.markers
        if self.object and key not in tools.template:
            return self.object.write(tools)
        line = "" if f"{end_of_key}{value}" in tools.template else "\n"
        texts = TextArguments(key, f"{end_of_key}{line}{value}", f"{end_of_value}{line}")

        def written(name: str, schema: Schema) -> Format:
            return seq(tokens(opens), f"{name}{line}", texts.of(schema), tokens(closes))

        return tools.calls(written, line)


PAIRS = PairForm()
CATS = PairForm("longcat_", ObjectForm("<longcat_tool_call>", "</longcat_tool_call>"))
MARKERS, CAT_MARKERS = PAIRS.markers, CATS.markers
GLM = Dialect(
    PAIRS.parser,
    PAIRS.write,
    MARKERS,
    (MARKERS[0], MARKERS[2]),
    ("<tool_calls>",),
    start_markers=MARKERS[:1],
    text_markers=MARKERS[2:],
)
LONGCAT = Dialect(
    CATS.parser,
    CATS.write,
    CAT_MARKERS,
    CAT_MARKERS[:1],
    start_markers=CAT_MARKERS[:1],
    text_markers=CAT_MARKERS[2:],
)
