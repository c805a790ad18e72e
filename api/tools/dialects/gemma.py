"""Calls in Gemma's format: strings between marks that never occur in text.

<|tool_call>call:f{a:<|"|>x<|"|>,b:1,c:[<|"|>y<|"|>],d:{k:true}}<tool_call|>     Gemma 4
<start_function_call>call:f{a:<escape>x<escape>,b:1}<end_function_call>          FunctionGemma
"""

import re
import string
from collections.abc import Collection, Generator, Iterator
from dataclasses import dataclass
from functools import partial

import msgspec

from api.tools.call_formats import CallableTools, Schema, seq, tokens
from api.tools.dialects.dialect import Dialect
from api.tools.dialects.gemma_values import arguments_in
from api.tools.parsing.argument_types import ArgumentTypes
from api.tools.parsing.json_text import json_value
from api.tools.parsing.keys import key_until
from api.tools.parsing.output import SPACE, NotACall, ParserOutput, Steps, TextSteps
from api.tools.parsing.steps import (
    calls_after_markers,
    literal,
    name_until,
    skip_space,
    until,
)
from api.tools.parsing.typed import PYTHON_CONSTANTS, json_text, stream_string
from api.tools.tool_choice import OfferedFunctions
from engine.grammars.structural_tags import Format

BEGINS, ENDS = "{[", "}]"
KEY_LETTERS = frozenset(string.ascii_letters + string.digits + "_-$.")
UNQUOTED = r"([{}\[\],:])|([^{}\[\],:<]+|<)"


@dataclass(frozen=True, slots=True)
class QuotedForm:
    """The marks around a call, and the mark on both sides of a string."""

    opens: str
    closes: str
    quote: str

    @property
    def markers(self) -> tuple[str, ...]:
        """All marks."""
        return self.opens, self.closes, self.quote

    def parser(self, out: ParserOutput, offered: OfferedFunctions) -> Steps:
        """Parse an answer: each call has its own marks; text may come between calls."""
        call = partial(self._call, types=ArgumentTypes(offered))
        return calls_after_markers(out, call, self.opens)

    def _call(self, out: ParserOutput, types: ArgumentTypes) -> Steps:
        yield from literal((yield from skip_space()), "call:")
        name = yield from name_until((yield), "{")
        out.start_call(name)
        before, known = "{", types.properties(name)
        letter = yield from skip_space()
        while letter != "}":
            key = yield from self._key(letter, known)
            letter = yield from self._argument(out, f"{before}{json_text(key)}: ")
            before = ", "
            letter = (yield from skip_space()) if letter == "," else letter
        out.add_arguments("{}" if before == "{" else "}")
        out.end_call()
        yield from literal((yield from skip_space()), self.closes)
        out.drop_held()

    def _key(self, letter: str, known: Collection[str]) -> TextSteps:
        """Returns a key, quoted or not, behind which there is a colon; raises NotACall."""
        if letter != self.quote[0]:
            return (yield from key_until(letter, ":", known, KEY_LETTERS))
        yield from literal(letter, self.quote)
        key = yield from until(self.quote)
        yield from literal((yield from skip_space()), ":")
        return key

    def _argument(self, out: ParserOutput, before: str) -> TextSteps:
        """Emit a string as it comes, any other value when it is complete; returns the first
        character after it.
        """
        letter = yield from skip_space()
        if letter != self.quote[0]:
            value, letter = yield from self._value(letter)
            out.add_arguments(before + value)
            return letter
        yield from literal(letter, self.quote)
        out.add_arguments(f'{before}"')
        yield from stream_string(out, self.quote)
        letter = yield from skip_space()
        if letter not in ",}":
            raise NotACall
        return letter

    def _value(self, letter: str) -> Generator[None, str, tuple[str, str]]:
        """Returns the value as JSON, and the comma or brace after it; raises NotACall."""
        read, depth, quoted = "", 0, False
        while quoted or depth or letter not in ",}":
            read += letter
            if read.endswith(self.quote):
                quoted = not quoted
            elif not quoted:
                depth += (letter in BEGINS) - (letter in ENDS)
            letter = yield
        return self._as_json(read), letter

    def _as_json(self, text: str) -> str:
        """The value as JSON, with its words quoted; raises NotACall if that is not JSON."""
        converted = "".join(self._parts(text))
        try:
            json_value(converted)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise NotACall from error
        return converted

    def _parts(self, text: str) -> Iterator[str]:
        quote = re.escape(self.quote)
        for part in re.finditer(f"{quote}(.*?){quote}|{UNQUOTED}", text, re.DOTALL):
            quoted, sign, bare = part.groups()
            if quoted is not None:
                yield msgspec.json.encode(quoted).decode()
            elif sign:
                yield sign
            elif word := bare.strip(SPACE):
                is_key = text[part.end() : part.end() + 1] == ":"
                yield word if not is_key and _is_atom(word) else _as_word(word, is_key=is_key)

    def write(self, tools: CallableTools) -> Format:
        """Format calls, one directly after another."""
        return tools.calls(self._written)

    def _written(self, name: str, schema: Schema) -> Format:
        inner = arguments_in(self.quote, schema)
        return seq(tokens(self.opens), f"call:{name}", inner, tokens(self.closes))


def _is_atom(word: str) -> bool:
    try:
        return not isinstance(json_value(word), str)
    except (msgspec.DecodeError, UnicodeError):
        return False


def _as_word(word: str, *, is_key: bool) -> str:
    if word in PYTHON_CONSTANTS and not is_key:
        return PYTHON_CONSTANTS[word]
    return msgspec.json.encode(word).decode()


def _dialect(form: QuotedForm) -> Dialect:
    sign = f"{form.opens}call:"
    return Dialect(form.parser, form.write, form.markers, (sign,), start_markers=(form.opens,))


GEMMA = _dialect(QuotedForm("<|tool_call>", "<tool_call|>", '<|"|>'))
FUNCTION_GEMMA = _dialect(
    QuotedForm("<start_function_call>", "<end_function_call>", "<escape>")
)
