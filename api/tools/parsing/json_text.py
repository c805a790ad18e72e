"""Strict JSON (RFC 8259): a validator that takes a character at a time, and whole texts."""

import re
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import msgspec

from api.tools.parsing.output import SPACE, NotACall

CLOSES = {"{": "}", "[": "]"}
ESCAPES, HEX = '"\\/bfnrt', "0123456789abcdefABCDEF"
ATOM = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false|null")
ATOM_BEGINS = frozenset("-0123456789tfn")
ATOM_LETTERS = frozenset("-+.0123456789abcdefghijklmnopqrstuvwxyzE")
LAST_CONTROL = "\x1f"
DECODER = msgspec.json.Decoder(float_hook=float)


def json_value(text: str) -> Any:  # noqa: ANN401  JSON of any shape
    """The value of a JSON text, in which numbers beyond a float's range are infinite. Raises
    msgspec.DecodeError, UnicodeError or RecursionError.
    """
    return DECODER.decode(text)


class _Next(Enum):
    """What may come next, besides white space."""

    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()


ENDS = frozenset(CLOSES.values())
MAY_END = frozenset({_Next.VALUE_OR_END, _Next.KEY_OR_END, _Next.COMMA_OR_END})


@dataclass(slots=True)
class JsonValue:
    """Validates an object, list or string. (Only the next character shows a number's end.)"""

    _open: list[str] = field(default_factory=list)
    _next: _Next = _Next.VALUE
    _text: bool = False  # within a string
    _escape: int = 0  # hex digits of \u that are still missing; -1: after the backslash
    _atom: str = ""  # a number, or a word

    @property
    def in_string(self) -> bool:
        """Whether a string has begun and not ended."""
        return self._text

    def take(self, letter: str) -> bool:
        """Read a character; returns whether it ends the value. Raises NotACall."""
        if self._text:
            self._in_text(letter)
        elif self._atom and letter in ATOM_LETTERS:
            self._atom += letter
            return False
        else:
            self._end_atom()
            if letter in SPACE:
                return False
            self._between(letter)
        return not (self._open or self._text)

    def _in_text(self, letter: str) -> None:
        if self._escape > 0:
            _need(letter in HEX)
            self._escape -= 1
        elif self._escape:
            _need(letter in ESCAPES or letter == "u")
            self._escape = 4 if letter == "u" else 0
        elif letter == "\\":
            self._escape = -1
        elif letter == '"':
            self._text = False
        else:
            _need(letter > LAST_CONTROL)

    def _end_atom(self) -> None:
        if self._atom:
            _need(ATOM.fullmatch(self._atom) is not None)
            self._atom = ""

    def _between(self, letter: str) -> None:
        if letter in ENDS and self._next in MAY_END:
            self._close(letter)
        elif self._next in (_Next.VALUE, _Next.VALUE_OR_END):
            self._begin(letter)
        elif self._next in (_Next.KEY, _Next.KEY_OR_END):
            _need(letter == '"')
            self._text, self._next = True, _Next.COLON
        elif self._next is _Next.COLON:
            _need(letter == ":")
            self._next = _Next.VALUE
        else:
            _need(letter == ",")
            self._next = _Next.KEY if self._open[-1] == "{" else _Next.VALUE

    def _begin(self, letter: str) -> None:
        self._next = _Next.COMMA_OR_END
        if letter in CLOSES:
            self._open.append(letter)
            self._next = _Next.KEY_OR_END if letter == "{" else _Next.VALUE_OR_END
        elif letter == '"':
            self._text = True
        else:
            _need(letter in ATOM_BEGINS and bool(self._open))
            self._atom = letter

    def _close(self, letter: str) -> None:
        _need(letter == CLOSES[self._open[-1]])
        self._open.pop()
        self._next = _Next.COMMA_OR_END


def _need(fits: bool) -> None:
    if not fits:
        raise NotACall
