"""The input of a custom tool: the one string in the arguments that the model wrote. Pure.

Clients get that string itself, not JSON, so its escapes are decoded as they come.
"""

from dataclasses import dataclass, field

import msgspec

from api.tools.functions import INPUT
from api.tools.parsing.json_text import JsonValue
from api.tools.parsing.output import SPACE, NotACall, Steps, TextSteps
from api.tools.parsing.steps import json_string, literal, skip_space

ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
HIGH, LOW = range(0xD800, 0xDC00), range(0xDC00, 0xE000)
HALF = "\N{REPLACEMENT CHARACTER}"  # for one half of a surrogate pair without the other


def custom_arguments(given: str) -> str:
    """The JSON arguments of a custom tool's call, from the input that a client sent back."""
    return msgspec.json.encode({INPUT: given}).decode()


@dataclass(slots=True)
class CustomInputReader:
    """Decodes the input of one call from its JSON arguments, as they come."""

    _steps: Steps = field(init=False)
    _kept: list[str] = field(default_factory=list)
    _decoded: list[str] = field(default_factory=list)
    _found: bool = False
    _high: int | None = None  # the first half of a surrogate pair

    def __post_init__(self) -> None:
        """Begin without any arguments."""
        self._steps = self._object()
        next(self._steps)

    def read(self, arguments: str) -> str:
        """Read more arguments; returns the text that they add to the input."""
        if not self._found:
            self._kept.append(arguments)
        for letter in arguments:
            self._steps.send(letter)
        decoded, self._decoded = "".join(self._decoded), []
        return decoded

    @property
    def fallback(self) -> str:
        """The input of a whole call whose arguments lack that string: all of the arguments, or
        an empty text if they are an empty object.
        """
        written = "" if self._found else "".join(self._kept)
        return written if written.strip("{}" + SPACE) else ""

    def _object(self) -> Steps:
        try:
            yield from literal((yield from skip_space()), "{")
            letter = ","
            while letter == ",":
                letter = yield from self._member()
        except NotACall:  # not an object, so the call will not be complete
            pass
        while True:
            yield

    def _member(self) -> TextSteps:
        """Read one key and its value; returns the character after them."""
        key = yield from json_string((yield from skip_space()))
        yield from literal((yield from skip_space()), ":")
        letter = yield from skip_space()
        if key != INPUT or letter != '"':
            return (yield from _passed(letter))
        self._found = True
        while (letter := (yield)) != '"':
            if letter == "\\":
                yield from self._escape()
            else:
                self._emit(letter)
        self._emit("")
        return letter

    def _escape(self) -> Steps:
        letter = yield
        if letter != "u":
            self._emit(ESCAPES.get(letter, letter))
            return
        digits = ""
        while len(digits) < 4:
            digits += yield
        code = int(digits, 16)
        if code in LOW and self._high is not None:
            pair = 0x10000 + (self._high - HIGH.start << 10) + (code - LOW.start)
            self._high = None
            self._emit(chr(pair))
        elif code in HIGH:
            self._emit("")
            self._high = code
        else:
            self._emit(HALF if code in LOW else chr(code))

    def _emit(self, letter: str) -> None:
        if self._high is not None:
            self._decoded.append(HALF)
            self._high = None
        self._decoded.append(letter)


def _passed(letter: str) -> TextSteps:
    """Skip another key's value; returns the first character after it."""
    if letter in '{["':
        value = JsonValue()
        while not value.take(letter):
            letter = yield
        return (yield from skip_space())
    while letter not in SPACE + ",}":
        letter = yield
    return (yield from skip_space()) if letter in SPACE else letter
