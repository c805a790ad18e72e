"""Arguments that models write as plain text: a tool's schema says what they mean."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from api.tools.parsing.kinds import TEXT, ArgumentKinds, Kinds
from api.tools.parsing.python_values import of_python
from api.tools.parsing.steps import longest_begun, until
from api.tools.parsing.tape import SPACE, NotACall, Steps, Tape

WORDS: Mapping[str, str] = {"True": "true", "False": "false", "None": "null"}
"""What Python, and a model that was shown its texts, says for JSON's."""


@dataclass(slots=True)
class TypedArguments:
    """Of one call. What can only be a text is said as it comes, all else when it is whole."""

    tape: Tape
    function: str
    kinds: ArgumentKinds
    _said: set[str] = field(default_factory=set)

    def take(
        self, key: str, end: str, *, lines: bool = False, kinds: Kinds | None = None
    ) -> Steps:
        """One, up to its end; `lines`: line breaks around it are the form's, not its. Of what
        `kinds` it is its schema says, if nobody else does. Raises NotACall where the key was
        there before.
        """
        if key in self._said:
            raise NotACall
        before = f"{', ' if self._said else '{'}{_json(key)}: "
        self._said.add(key)
        kinds = kinds or self.kinds.of(self.function, key)
        if kinds == TEXT:
            self.tape.argue(f'{before}"')
            yield from text_until(self.tape, end, "\n" if lines else "")
            return
        text = yield from until(end)
        if lines:
            text = text.removeprefix("\n").removesuffix("\n")
        self.tape.argue(before + _value(text, kinds))

    def end(self) -> None:
        """There are no more."""
        self.tape.argue("}" if self._said else "{}")


def text_until(tape: Tape, end: str, line: str = "") -> Steps:
    """A string's inside, and the mark behind it. The line breaks around it are not its."""
    ends = (end, line + end) if line else (end,)
    yield
    if tape.held == line:
        tape.drop()
        yield
    while not tape.held.endswith(end):
        begun = longest_begun(tape.held, ends)
        if said := tape.held[: len(tape.held) - begun]:
            tape.argue(_inside(said), but=begun)
        yield
    tape.argue(_inside(tape.held.removesuffix(end).removesuffix(line)) + '"')


def _value(text: str, kinds: Kinds) -> str:
    """As JSON: in its own words, if it is some, or else from Python, as some templates show it.
    If it is none, or of a kind that is not asked for where a text is, it is a string.
    """
    written = text.strip(SPACE)
    if str not in kinds:
        written = WORDS.get(written, written)
    try:
        kind = type(msgspec.json.decode(written))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        said = None if str in kinds else of_python(written)
        return _json(text) if said is None else said
    return _json(text) if str in kinds and kind not in kinds else written


def _inside(text: str) -> str:
    return _json(text)[1:-1]


def _json(value: str) -> str:
    return msgspec.json.encode(value).decode()
