"""What parsers of calls are made of: steps that read a part of an answer.

A step that is given a letter begins with it; one that comes to a letter has read it.
"""

import re
import string
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

import msgspec

from api.tools.parsing.json_text import JsonValue
from api.tools.parsing.tape import SPACE, NotACall, Step, Steps, Tape, begun_of
from api.tools.wishes import Offered

NAMES, ARGUMENTS = ("name", "tool_name"), ("arguments", "parameters")
LABELS = ("id", "type", "tool_call_id")  # what some models write beside them, and nobody needs
NO_ARGUMENTS = "{}"
TAG = "<"
NAME_LETTERS = frozenset(string.ascii_letters + string.digits + "_-.")
Accepts = Callable[[str], bool]


def any_name(name: str) -> bool:
    """For models that say clearly that they mean a call: the client is told of it."""
    return bool(name)


def offered_only(offered: Offered) -> Accepts:
    """For models whose calls could as well be an answer in JSON."""
    return offered.__contains__


def content_until(tape: Tape, *markers: str) -> Step:
    """Text is content up to a marker, to which it comes, and white space before it: these are
    held then.
    """
    news = tape.held
    while not tape.held.endswith(markers):
        if news.strip(SPACE):  # else white space came to white space
            tape.content(but=_undecided(tape.held, markers))
        tape.free = _free(markers)
        yield
        tape.free, news = None, tape.held[-2:]
    return next(one for one in markers if tape.held.endswith(one))


@cache
def _free(markers: Sequence[str]) -> re.Pattern[str]:
    """Text that ends in no white space, and in which no marker begins."""
    begins = "".join({re.escape(one[0]) for one in markers})
    return re.compile(f"(?:[{SPACE}]*[^{SPACE}{begins}])+")


def _undecided(held: str, markers: Sequence[str]) -> int:
    """How many of the last letters may begin a marker, or be white space before it."""
    begun = longest_begun(held, markers)
    return len(held) - len(held[: len(held) - begun].rstrip(SPACE))


def longest_begun(held: str, markers: Sequence[str]) -> int:
    """How many of the last letters may begin one of the markers."""
    return max([len(begun_of(held, one)) for one in markers])


def rest(tape: Tape) -> Steps:
    """All that comes is content."""
    while True:
        if tape.held and tape.held[-1] not in SPACE:
            tape.content()
        yield


def attempt(tape: Tape, steps: Steps, *, marked: bool = True) -> Steps:
    """These steps, up to where there is no call: whoever goes on has to find what is held.

    An answer that is cut in them is cut in a call: if it is `marked` as one, or has a name.
    """
    around, tape.calling = tape.calling, tape.calling or marked
    with suppress(NotACall):
        yield from steps
    tape.calling = around


def calls_behind(tape: Tape, call: Callable[[Tape], Steps], *markers: str) -> Steps:
    """A whole answer: what stands behind each marker is a call, or several, or none; and all
    around it is content.
    """
    while True:
        yield from content_until(tape, *markers)
        yield from attempt(tape, call(tape))


def space() -> Step:
    """White space; comes to what follows it."""
    while (letter := (yield)) in SPACE:
        pass
    return letter


def literal(letter: str, expected: str) -> Steps:
    """Exactly this; raises NotACall."""
    for place, wanted in enumerate(expected):
        if place:
            letter = yield
        if letter != wanted:
            raise NotACall


def until(end: str) -> Step:
    """Comes to what is before the end."""
    read = ""
    while not read.endswith(end):
        read += yield
    return read[: -len(end)]


def word_until(end: str) -> Step:
    """The same of a word in a tag: raises NotACall where another tag begins in it."""
    word = ""
    while (letter := (yield)) != end[0]:
        if letter == TAG:
            raise NotACall
        word += letter
    yield from literal(letter, end)
    return word


def name_until(letter: str, end: str, letters: Container[str] = NAME_LETTERS) -> Step:
    """Comes to a name of such letters, behind which are white space and the end; raises
    NotACall.
    """
    name = ""
    while letter in letters:
        name += letter
        letter = yield
    if letter in SPACE:
        letter = yield from space()
    yield from literal(letter, end)
    if not name:
        raise NotACall
    return name


def text(letter: str) -> Step:
    """A JSON string; comes to what it says. Raises NotACall."""
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


def arguments(tape: Tape, letter: str) -> Steps:
    """A JSON object, said as it comes; raises NotACall."""
    value = _object(letter)
    while not value.take(letter):
        tape.argue(letter)
        letter = yield
    tape.argue(letter)


def _kept_arguments(letter: str) -> Step:
    """A JSON object; comes to its text. Raises NotACall."""
    value, read = _object(letter), letter
    while not value.take(letter):
        letter = yield
        read += letter
    return read


def _object(letter: str) -> JsonValue:
    if letter != "{":
        raise NotACall
    return JsonValue()


def call_object(tape: Tape, letter: str, accepts: Accepts, *, plainly: bool = False) -> Steps:
    """An object of a function's name and its arguments, in any order; or `plainly` the name
    first, without an escape. Raises NotACall.
    """
    yield from literal(letter, "{")
    call, letter = _Call(tape, accepts), ","
    if plainly:
        yield from literal((yield from space()), f'"{NAMES[0]}"')
        yield from literal((yield from space()), ":")
        yield from literal((yield from space()), '"')
        call.begin((yield from word_until('"')))
        letter = yield from space()
    while letter == ",":
        key = yield from text((yield from space()))
        yield from literal((yield from space()), ":")
        yield from call.member(key, (yield from space()))
        letter = yield from space()
    yield from literal(letter, "}")
    call.end()


@dataclass(slots=True)
class _Call:
    """Arguments that come before the name wait for it."""

    tape: Tape
    accepts: Accepts
    named: bool = False
    argued: bool = False
    early: str = ""

    def member(self, key: str, letter: str) -> Steps:
        if key in NAMES and not self.named:
            self.begin((yield from text(letter)))
        elif key in ARGUMENTS and not self.argued:
            self.argued = True
            if self.named:
                yield from arguments(self.tape, letter)
            else:
                self.early = yield from _kept_arguments(letter)
        elif key in LABELS:
            yield from text(letter)
        else:
            raise NotACall

    def begin(self, name: str) -> None:
        """Raises NotACall."""
        if not self.accepts(name):
            raise NotACall
        self.named = True
        self.tape.begin(name)
        if self.early:
            self.tape.argue(self.early)

    def end(self) -> None:
        if not self.named:
            raise NotACall
        if not self.argued:
            self.tape.argue(NO_ARGUMENTS)
        self.tape.end()


def call_list(tape: Tape, letter: str, accepts: Accepts) -> Steps:
    """A list of such objects; raises NotACall."""
    yield from literal(letter, "[")
    letter = ","
    while letter == ",":
        yield from call_object(tape, (yield from space()), accepts)
        letter = yield from space()
    yield from literal(letter, "]")
    tape.drop()
