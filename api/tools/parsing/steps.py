"""Steps of tool call parsers: generators that each parse a part of an answer.

A step that takes a `letter` treats it as the first character of its part; a step that returns a
letter has already read it.
"""

import re
import string
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from functools import cache

import msgspec

from api.tools.parsing.json_text import JsonValue
from api.tools.parsing.output import (
    SPACE,
    NotACall,
    ParserOutput,
    Steps,
    TextSteps,
    partial_marker,
)
from api.tools.tool_choice import OfferedFunctions

TAG = "<"
NAME_LETTERS = frozenset(string.ascii_letters + string.digits + "_-.")
Accepts = Callable[[str], bool]


def any_name(name: str) -> bool:
    """Accept any name: where calls are clearly marked, clients get unknown ones too."""
    return bool(name)


def offered_only(offered: OfferedFunctions) -> Accepts:
    """Accept offered functions only: for calls that look like any JSON or Python."""
    return offered.__contains__


def content_until(out: ParserOutput, *markers: str) -> TextSteps:
    """Emit content up to one of the markers, which is returned. The marker and the white space
    before it are held then.
    """
    news = out.held
    while not out.held.endswith(markers):
        if news.strip(SPACE):  # otherwise only white space was added to white space
            out.emit_content(but=_undecided(out.held, markers))
        out.content_pattern = _content_pattern(markers)
        yield
        out.content_pattern, news = None, out.held[-2:]
    return next(one for one in markers if out.held.endswith(one))


@cache
def _content_pattern(markers: Sequence[str]) -> re.Pattern[str]:
    """A pattern of text that does not end in white space, and in which no marker can begin."""
    begins = "".join({re.escape(one[0]) for one in markers})
    return re.compile(f"(?:[{SPACE}]*[^{SPACE}{begins}])+")


def _undecided(held: str, markers: Sequence[str]) -> int:
    """How many of the last letters may begin a marker, or be white space before it."""
    begun = longest_partial_marker(held, markers)
    return len(held) - len(held[: len(held) - begun].rstrip(SPACE))


def longest_partial_marker(held: str, markers: Sequence[str]) -> int:
    """How many of the last letters may begin one of the markers."""
    return max([len(partial_marker(held, one)) for one in markers])


def rest_as_content(out: ParserOutput) -> Steps:
    """Emit all of the rest as content."""
    while True:
        if out.held and out.held[-1] not in SPACE:
            out.emit_content()
        yield


def attempt_call(out: ParserOutput, steps: Steps, *, marked: bool = True) -> Steps:
    """Run the steps of a call, and stop if they raise NotACall; the caller then decides what
    the held text is.

    `marked`: a marker shows that this is a call, so an answer that is cut here was cut within a
    call.
    """
    around, out.in_call = out.in_call, out.in_call or marked
    with suppress(NotACall):
        yield from steps
    out.in_call = around


def calls_after_markers(
    out: ParserOutput, call: Callable[[ParserOutput], Steps], *markers: str
) -> Steps:
    """Parse a whole answer: content, and after each marker the steps of `call`, which parse any
    number of calls.
    """
    while True:
        yield from content_until(out, *markers)
        yield from attempt_call(out, call(out))


def skip_space() -> TextSteps:
    """Skip white space; returns the character after it."""
    while (letter := (yield)) in SPACE:
        pass
    return letter


def literal(letter: str, expected: str) -> Steps:
    """Read exactly the expected text; raises NotACall."""
    for place, wanted in enumerate(expected):
        if place:
            letter = yield
        if letter != wanted:
            raise NotACall


def until(end: str) -> TextSteps:
    """Returns the text before the `end`."""
    read = ""
    while not read.endswith(end):
        read += yield
    return read[: -len(end)]


def word_until(end: str) -> TextSteps:
    """Returns the text before the `end`; raises NotACall if a tag begins in it."""
    word = ""
    while (letter := (yield)) != end[0]:
        if letter == TAG:
            raise NotACall
        word += letter
    yield from literal(letter, end)
    return word


def name_until(letter: str, end: str, letters: Container[str] = NAME_LETTERS) -> TextSteps:
    """Returns a name of these letters; white space and the `end` follow it. Raises NotACall."""
    name = ""
    while letter in letters:
        name += letter
        letter = yield
    if letter in SPACE:
        letter = yield from skip_space()
    yield from literal(letter, end)
    if not name:
        raise NotACall
    return name


def json_string(letter: str) -> TextSteps:
    """Returns the value of a JSON string; raises NotACall."""
    if letter != '"':
        raise NotACall
    value, read = JsonValue(), letter
    while not value.take(letter):
        letter = yield
        read += letter
    try:
        return msgspec.json.decode(read, type=str)
    except (msgspec.DecodeError, UnicodeError) as error:  # half of a pair of surrogates
        raise NotACall from error
