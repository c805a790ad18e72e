"""Calls as Hunyuan's Hy3 and Hy4 write them: in a section, with pairs of texts as arguments, of
which the schema says what they mean. All tags have a word of their own.

    <tool_calls:opensource>
    <tool_call:opensource>f<tool_sep:opensource>
    <arg_key:opensource>a</arg_key:opensource>
    <arg_value:opensource>1</arg_value:opensource>
    </tool_call:opensource>
    </tool_calls:opensource>

Hy4 has neither line breaks nor the tag behind the name, and each of its models may have another
word, or none: its tokenizer tells.
"""

import re
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial

from api.tools.call_formats import CallableTools, Schema, seq, tokens
from api.tools.dialects.dialect import Dialect
from api.tools.parsing.argument_types import ArgumentTypes
from api.tools.parsing.output import ParserOutput, Steps, TextSteps
from api.tools.parsing.sections import SectionForm
from api.tools.parsing.steps import literal, name_until, skip_space
from api.tools.parsing.typed import TypedArguments
from api.tools.text_arguments import TextArguments
from api.tools.tool_choice import OfferedFunctions
from engine.grammars.structural_tags import Format

NAMES = "tool_calls", "tool_call", "arg_key", "arg_value"
TAG_OF_WORD = re.compile(rf"<(?:think|{'|'.join(NAMES)})(:[^\s>]+)?>")
KNOWN_WORDS = 32  # whose dialects are cached


@dataclass(frozen=True, slots=True)
class TagForm:
    """The syntax of calls; `word` ends all tags. `separated`: a tag ends the name of a
    function, and line breaks stand between tags.
    """

    word: str
    separated: bool

    @property
    def opening(self) -> tuple[str, ...]:
        """The opening tags of a section, a call, a key and a value."""
        return tuple(f"<{one}{self.word}>" for one in NAMES)

    @property
    def closing(self) -> tuple[str, ...]:
        """The closing tags of the same."""
        return tuple(f"</{one}{self.word}>" for one in NAMES)

    @property
    def separator(self) -> str:
        """The tag behind the name of a function."""
        return f"<tool_sep{self.word}>"

    @property
    def pairs(self) -> tuple[str, ...]:
        """The tags around keys and values."""
        return *self.opening[2:], *self.closing[2:]

    def parser(self, out: ParserOutput, offered: OfferedFunctions) -> Steps:
        """Parse an answer: text may come around sections."""
        call = partial(self._call, types=ArgumentTypes(offered))
        form = SectionForm(self.opening[:1], self.closing[:1], self.opening[1], call)
        return form.parser()(out, offered)

    def _call(self, out: ParserOutput, types: ArgumentTypes) -> Steps:
        _, _, end_of_key, end_of_value = self.closing
        name = yield from self._name()
        out.start_call(name)
        arguments = TypedArguments(out, name, types)
        while (yield from self._goes_on()):
            key = yield from arguments.read_key(end_of_key)
            yield from literal((yield from skip_space()), self.opening[3])
            yield from arguments.read_value(key, end_of_value)
            yield from literal((yield from skip_space()), "<")
        arguments.end()
        out.end_call()

    def _name(self) -> TextSteps:
        """Returns the name of a function, up to the `<` of the next tag; raises NotACall."""
        letter = yield from skip_space()
        if not self.separated:
            return (yield from name_until(letter, "<"))
        name = yield from name_until(letter, self.separator)
        yield from literal((yield from skip_space()), "<")
        return name

    def _goes_on(self) -> Generator[None, str, bool]:
        """After `<`: whether one more argument follows, or the call's end; raises NotACall."""
        letter = yield
        more = letter != "/"
        yield from literal(letter, (self.opening[2] if more else self.closing[1])[1:])
        return more

    def write(self, tools: CallableTools) -> Format:
        """Format a section."""
        section, call, key, value = self.opening
        end_of_section, end, end_of_key, end_of_value = self.closing
        line = "\n" if self.separated else ""
        spelt = () if self.separated else self.pairs
        texts = TextArguments(
            key, f"{end_of_key}{line}{value}", f"{end_of_value}{line}", tokens=spelt
        )

        def written(name: str, schema: Schema) -> Format:
            head = seq(tokens(call), name)
            if self.separated:
                head = seq(head, tokens(self.separator), line)
            return seq(head, texts.of(schema), tokens(end), *filter(None, [line]))

        calls = tools.calls(written)
        return seq(tokens(section), *filter(None, [line]), calls, tokens(end_of_section))


OPEN_SOURCE = TagForm(":opensource", separated=True)
HY3 = Dialect(
    OPEN_SOURCE.parser,
    OPEN_SOURCE.write,
    (*OPEN_SOURCE.opening, *OPEN_SOURCE.closing, OPEN_SOURCE.separator),
    ("<tool_sep", ":opensource"),
    start_markers=OPEN_SOURCE.opening[:1],
    text_markers=OPEN_SOURCE.pairs,
)


def word_among(added_tokens: Iterable[str]) -> str:
    """The word in the tags that a tokenizer has; empty if there is none."""
    found = filter(None, map(TAG_OF_WORD.fullmatch, added_tokens))
    return next((one[1] or "" for one in found), "")


@lru_cache(KNOWN_WORDS)
def hy4(word: str) -> Dialect:
    """Hy4's dialect with this word in its tags."""
    form = TagForm(word, separated=False)
    return Dialect(
        form.parser,
        form.write,
        (*form.opening, *form.closing),
        ("<tool_calls:", "<arg_key:"),
        start_markers=form.opening[:1],
    )


HY4 = hy4("")
