"""What a custom tool is given: the one text among the arguments that the model wrote. Pure.

As clients get it, it is no JSON: escapes are undone as they come.
"""

from dataclasses import dataclass, field

import msgspec

from api.tools.functions import INPUT
from api.tools.parsing.json_text import JsonValue
from api.tools.parsing.output import SPACE, NotACall, Steps, TextSteps
from api.tools.parsing.steps import json_string, literal, skip_space

ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
HIGH, LOW = range(0xD800, 0xDC00), range(0xDC00, 0xE000)
HALF = "\N{REPLACEMENT CHARACTER}"  # of a pair of surrogates, without the other


def arguments_of(given: str) -> str:
    """The arguments of a call that was made."""
    return msgspec.json.encode({INPUT: given}).decode()


@dataclass(slots=True)
class InputReader:
    """Of one call. `late`: what its input is if there was no such text: all that was written
    instead, or nothing where there were no arguments.
    """

    _steps: Steps = field(init=False)
    _kept: list[str] = field(default_factory=list)
    _said: list[str] = field(default_factory=list)
    _found: bool = False
    _high: int | None = None  # the first half of a pair

    def __post_init__(self) -> None:
        """Nothing was read."""
        self._steps = self._object()
        next(self._steps)

    def read(self, arguments: str) -> str:
        """What more of them adds to the input."""
        if not self._found:
            self._kept.append(arguments)
        for letter in arguments:
            self._steps.send(letter)
        said, self._said = "".join(self._said), []
        return said

    @property
    def late(self) -> str:
        """When the call is whole."""
        written = "" if self._found else "".join(self._kept)
        return written if written.strip("{}" + SPACE) else ""

    def _object(self) -> Steps:
        try:
            yield from literal((yield from skip_space()), "{")
            letter = ","
            while letter == ",":
                letter = yield from self._member()
        except NotACall:  # no object, so that the call will not be whole
            pass
        while True:
            yield

    def _member(self) -> TextSteps:
        """Comes to what stands behind it."""
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
                self._say(letter)
        self._say("")
        return letter

    def _escape(self) -> Steps:
        letter = yield
        if letter != "u":
            self._say(ESCAPES.get(letter, letter))
            return
        digits = ""
        while len(digits) < 4:
            digits += yield
        code = int(digits, 16)
        if code in LOW and self._high is not None:
            pair = 0x10000 + (self._high - HIGH.start << 10) + (code - LOW.start)
            self._high = None
            self._say(chr(pair))
        elif code in HIGH:
            self._say("")
            self._high = code
        else:
            self._say(HALF if code in LOW else chr(code))

    def _say(self, letter: str) -> None:
        if self._high is not None:
            self._said.append(HALF)
            self._high = None
        self._said.append(letter)


def _passed(letter: str) -> TextSteps:
    """A value that is not wanted; comes to what stands behind it."""
    if letter in '{["':
        value = JsonValue()
        while not value.take(letter):
            letter = yield
        return (yield from skip_space())
    while letter not in SPACE + ",}":
        letter = yield
    return (yield from skip_space()) if letter in SPACE else letter
