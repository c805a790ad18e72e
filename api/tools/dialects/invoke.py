"""Calls as MiniMax M2, DeepSeek V3.2 and Step 3 write them: in a section, arguments as text.

    <minimax:tool_call>
    <invoke name="f">
    <parameter name="a">1</parameter>
    </invoke>
    </minimax:tool_call>

MiniMax leaves it to the schema what a text means. DeepSeek says which arguments are texts, and
its tags have a word of their own; V4 calls the section otherwise, and V4.1 has a space behind
the word:

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="f">
    <｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>

Step 3 leaves meaning to the schema, and has each call between marks, behind its type:

    <｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="f">
    <steptml:parameter name="a">1</steptml:parameter>
    </steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>
"""  # noqa: RUF002  its marks are of these letters

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial

from api.tools.call_formats import CallableTools, Schema, seq, tokens
from api.tools.dialects.dialect import Dialect
from api.tools.parsing.argument_types import ArgumentTypes
from api.tools.parsing.json_types import ANY_TYPE, STRING_ONLY, JsonTypes
from api.tools.parsing.output import NotACall, Parser, ParserOutput, Steps, TextSteps
from api.tools.parsing.sections import SectionForm
from api.tools.parsing.steps import TAG, literal, name_until, skip_space, word_until
from api.tools.parsing.typed import TypedArguments
from api.tools.text_arguments import TextArguments
from api.tools.tool_choice import OfferedFunctions
from engine.grammars.structural_tags import Format

WORD = "｜DSML｜"  # noqa: RUF001
SPACED = f"{WORD} "
SECTIONS = ("function_calls", "tool_calls")
TYPE = "function"
QUOTES = "\"'"
IS_TEXT = {"true": STRING_ONLY, "false": ANY_TYPE - STRING_ONLY}


@dataclass(frozen=True, slots=True)
class InvokeForm:
    """The syntax of calls. `word` is in all tags. `declares_types`: each argument says whether
    it is a string. `around`: the markers before a call, after its type `function`, and after
    the call.
    """

    opens: tuple[str, ...]
    closes: tuple[str, ...]
    word: str = ""
    declares_types: bool = False
    around: tuple[str, str, str] | None = None

    @property
    def mark(self) -> str:
        """The text before the name of a function, and its quotes."""
        return f"<{self.word}invoke name="

    def parser(self) -> Parser:
        """The parser of an answer: text may come around sections."""

        def parse(out: ParserOutput, offered: OfferedFunctions) -> Steps:
            types = ArgumentTypes(offered)
            call = partial(self._marked if self.around else self._call, types=types)
            mark = self.around[0] if self.around else self.mark
            return SectionForm(self.opens, self.closes, mark, call).parser()(out, offered)

        return parse

    def _marked(self, out: ParserOutput, types: ArgumentTypes) -> Steps:
        """Parse a call with its marks; its type and the mark after the call may be missing."""
        assert self.around
        _, separator, end = self.around
        letter = yield from skip_space()
        if letter != TAG:
            yield from name_until(letter, separator)
            letter = yield from skip_space()
        yield from literal(letter, self.mark)
        yield from self._call(out, types)
        yield from literal((yield from skip_space()), end)
        out.drop_held()

    def _call(self, out: ParserOutput, types: ArgumentTypes) -> Steps:
        quote = yield from _quote()
        name = yield from name_until((yield), f"{quote}>")
        out.start_call(name)
        arguments = TypedArguments(out, name, types)
        while (yield from self._goes_on()):
            key = yield from arguments.read_key((yield from _quote()))
            types_here = yield from self._declared_types()
            yield from arguments.read_value(key, f"</{self.word}parameter>", types=types_here)
        arguments.end()
        out.end_call()

    def _goes_on(self) -> Generator[None, str, bool]:
        """Whether another argument follows, or the call's end; raises NotACall."""
        yield from literal((yield from skip_space()), "<")
        letter = yield
        if letter == "/":
            yield from literal(letter, f"/{self.word}invoke>")
            return False
        yield from literal(letter, f"{self.word}parameter name=")
        return True

    def _declared_types(self) -> Generator[None, str, JsonTypes | None]:
        """The types that the argument declares; None: the schema decides. Raises NotACall."""
        letter = yield
        if letter == ">":
            return None
        yield from literal(letter, " string=")
        is_text = yield from word_until((yield from _quote()))
        yield from literal((yield), ">")
        return IS_TEXT.get(is_text)

    def write(self, tools: CallableTools, opens: str, closes: str) -> Format:
        """Format a section of calls."""
        string = ' string="{}"' if self.declares_types else ""
        texts = TextArguments(
            f'<{self.word}parameter name="',
            f'"{string.format("true")}>',
            f"</{self.word}parameter>\n",
            f'"{string.format("false")}>',
        )

        def written(name: str, schema: Schema) -> Format:
            head, end = f'{self.mark}"{name}">\n', f"</{self.word}invoke>"
            inner = seq(head, texts.of(schema), end)
            if self.around is None:
                return seq(inner, "\n")
            call, separator, ends = self.around
            return seq(tokens(call), TYPE, tokens(separator), inner, tokens(ends), "\n")

        return seq(tokens(opens), "\n", tools.calls(written), tokens(closes))


def _quote() -> TextSteps:
    """Returns the quote that begins a name: some models write single ones. Raises NotACall."""
    if (quote := (yield)) not in QUOTES:
        raise NotACall
    return quote


M2 = InvokeForm(("<minimax:tool_call>",), ("</minimax:tool_call>",))
DSML = InvokeForm(
    tuple(f"<{WORD}{one}>" for one in SECTIONS),
    tuple(f"</{WORD}{one}>" for one in SECTIONS),
    WORD,
    declares_types=True,
)


def write_m2(tools: CallableTools) -> Format:
    """Format one section in MiniMax M2's syntax."""
    return M2.write(tools, M2.opens[0], M2.closes[0])


def write_dsml(tools: CallableTools) -> Format:
    """Format one section in DeepSeek's syntax, under the name that the template has for it."""
    which = 0 if SECTIONS[0] in tools.template else 1
    return DSML.write(tools, DSML.opens[which], DSML.closes[which])


SPACED_DSML = InvokeForm(
    (f"<{SPACED}calls>",), (f"</{SPACED}calls>",), SPACED, declares_types=True
)


def write_spaced_dsml(tools: CallableTools) -> Format:
    """Format one section in DeepSeek V4.1's syntax."""
    return SPACED_DSML.write(tools, SPACED_DSML.opens[0], SPACED_DSML.closes[0])


STEP_SECTION = ("<｜tool_calls_begin｜>",), ("<｜tool_calls_end｜>",)  # noqa: RUF001
STEP_CALL = "<｜tool_call_begin｜>", "<｜tool_sep｜>", "<｜tool_call_end｜>"  # noqa: RUF001
STEP = InvokeForm(*STEP_SECTION, "steptml:", around=STEP_CALL)


def write_step(tools: CallableTools) -> Format:
    """Format one section in Step 3's syntax."""
    return STEP.write(tools, STEP.opens[0], STEP.closes[0])


M2_MARKS = (*M2.opens, *M2.closes)
MINIMAX_M2 = Dialect(M2.parser(), write_m2, M2_MARKS, M2.opens, start_markers=M2.opens)
DSML_MARKS = (WORD, *DSML.opens, *DSML.closes)
DEEPSEEK_V32 = Dialect(
    DSML.parser(),
    write_dsml,
    DSML_MARKS,
    (WORD,),
    start_markers=DSML.opens,
    text_markers=(WORD,),
)
DEEPSEEK_V41 = Dialect(
    SPACED_DSML.parser(),
    write_spaced_dsml,
    (WORD, *SPACED_DSML.opens, *SPACED_DSML.closes),
    (WORD, " calls>"),
    start_markers=SPACED_DSML.opens,
    text_markers=(WORD,),
)
STEP_TAGS = ("</steptml:parameter>", "</steptml:invoke>")
STEP_MARKS = (*STEP.opens, *STEP.closes, *STEP_CALL, *STEP_TAGS)
STEP_3 = Dialect(
    STEP.parser(),
    write_step,
    STEP_MARKS,
    (STEP.mark,),
    start_markers=STEP.opens,
    text_markers=STEP_TAGS,
)
