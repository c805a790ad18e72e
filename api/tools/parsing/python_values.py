"""Values as Python writes them, read a letter at a time and said as JSON."""

import ast
import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass

import msgspec

from api.tools.parsing.tape import SPACE, NotACall

QUOTES = "'\""
OPENS: Mapping[str, str] = {"(": ")", "[": "]", "{": "}"}
BEHIND_TEXT = frozenset(SPACE + ",)]}:")
"""What may stand behind a string: a quote before anything else is a letter of it, as models are
shown texts in quotes with nothing escaped."""
UNREADABLE = (
    *(ValueError, TypeError, SyntaxError, OverflowError),
    *(MemoryError, RecursionError),
)


def python_value(letter: str) -> Generator[None, str, tuple[str, str]]:
    """Comes to it as JSON, and to the comma or bracket behind it; raises NotACall."""
    place, read = _Place(), ""
    while not place.ends_at(letter):
        read += letter
        letter = yield
    if not (text := read.strip(SPACE)):
        raise NotACall
    return as_json(text), letter


@dataclass(slots=True)
class _Place:
    """Where in a value: within which string, and how deep."""

    quote: str = ""
    escaped: bool = False
    closing: bool = False  # the string, if what follows may stand behind one
    depth: int = 0

    def ends_at(self, letter: str) -> bool:
        """Whether this is behind the value."""
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


def as_json(text: str) -> str:
    """JSON is left as it is; what is neither that nor Python's is a string."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        if (said := of_python(text)) is not None:
            return said
        quoted = len(text) > 1 and text[0] in QUOTES and text[0] == text[-1]
        return msgspec.json.encode(text[1:-1] if quoted else text).decode()
    return text


def of_python(text: str) -> str | None:
    """A value as JSON. None: it is no Python, or nothing that JSON has."""
    try:
        said = json.dumps(ast.literal_eval(text), ensure_ascii=False, allow_nan=False)
        return said.encode().decode()  # or half a character is refused
    except UNREADABLE:
        return None
