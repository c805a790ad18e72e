"""Python literals in an answer, read a character at a time and turned into JSON."""

import ast
import json
import warnings
from collections.abc import Generator, Mapping
from dataclasses import dataclass

import msgspec

from api.tools.parsing.json_text import json_value
from api.tools.parsing.output import SPACE, NotACall

QUOTES = "'\""
OPENS: Mapping[str, str] = {"(": ")", "[": "]", "{": "}"}
BEHIND_TEXT = frozenset(SPACE + ",)]}:")
"""Characters that may follow a string. A quote before any other character is part of the
string, as prompts show models texts in quotes without escapes.
"""
UNREADABLE = (
    *(ValueError, TypeError, SyntaxError, OverflowError),
    *(MemoryError, RecursionError),
)


def python_value(letter: str) -> Generator[None, str, tuple[str, str]]:
    """Returns the value as JSON, and the comma or bracket after it; raises NotACall."""
    state, read = _ScanState(), ""
    while not state.ends_at(letter):
        read += letter
        letter = yield
    if not (text := read.strip(SPACE)):
        raise NotACall
    return to_json(text), letter


@dataclass(slots=True)
class _ScanState:
    """How far a value was read: within which string, and in how many brackets."""

    quote: str = ""
    escaped: bool = False
    closing: bool = False  # the string ends here if a character of BEHIND_TEXT follows
    depth: int = 0

    def ends_at(self, letter: str) -> bool:
        """Whether this character comes after the value."""
        if self.closing and letter in BEHIND_TEXT:
            self.quote = ""
        self.closing = False
        if self.quote:
            self.closing = letter == self.quote and not self.escaped
            self.escaped = letter == "\\" and not self.escaped
            return False
        if self.depth == 0 and letter in ",)":
            return True
        if letter in QUOTES:
            self.quote = letter
        elif letter in OPENS:
            self.depth += 1
        elif letter in OPENS.values():
            self.depth -= 1
            if self.depth < 0:
                raise NotACall
        return False


def to_json(text: str) -> str:
    """Convert to JSON: JSON stays as it is, a Python literal is converted, and anything else
    becomes a JSON string.
    """
    try:
        json_value(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        if (converted := python_to_json(text)) is not None:
            return converted
        quoted = len(text) > 1 and text[0] in QUOTES and text[0] == text[-1]
        return msgspec.json.encode(text[1:-1] if quoted else text).decode()
    return text


def python_to_json(text: str) -> str | None:
    """A Python literal as JSON. None: it is not a literal, or JSON has no such value."""
    try:
        with warnings.catch_warnings():  # about unknown escapes, such as in 'C:\\d'
            warnings.simplefilter("ignore")
            literal = ast.literal_eval(text)
        value = json.dumps(literal, ensure_ascii=False, allow_nan=False)
        return value.encode().decode()  # raises ValueError for half of a surrogate pair
    except UNREADABLE:
        return None
