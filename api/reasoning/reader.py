"""One choice's answer, piece by piece: what of it is reasoning, and what is content.

    <think>\n Let me see. \n</think>\n\nIt is 4.
             ───────────               ────────

Marks count once: the first of an answer, before all else, and the next that closes it. White
space beside a mark is part of it. What may become a mark is held back, and nothing depends on
how the answer was cut into pieces.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from api.reasoning.forms import Form
from api.tools.parsing.output import SPACE, partial_marker

Read = tuple[str, str]
"""Reasoning and content that are certain now and were not before."""


class ReasoningReader(Protocol):
    """Reads reasoning out of one choice's answer, whatever its model puts around it."""

    thought: bool
    """Whether some of the answer is reasoning."""

    @property
    def over(self) -> bool:
        """Whether what comes next is no reasoning, as far as is known."""

    @property
    def plain(self) -> bool:
        """Whether nothing is looked for in what comes: it need not be read."""

    def read(self, text: str) -> Read:
        """More of the answer."""

    def finish(self) -> Read:
        """What was held back: no more text comes."""


class _Place(Enum):
    BEFORE = auto()  # of the opening mark, if one comes
    WITHIN = auto()
    BEHIND = auto()  # the closing mark, and no content yet
    CONTENT = auto()


@dataclass(slots=True)
class ThoughtReader:
    """`begun`: what comes is reasoning, even without an opening mark. Unless it `tells`, that
    is left out.
    """

    form: Form
    begun: bool
    tells: bool = True
    thought: bool = field(init=False)  # some of the answer is reasoning
    _place: _Place = _Place.BEFORE
    _space: list[str] = field(default_factory=list)  # it may stand beside a mark
    _mark: str = ""  # the beginning of one
    _silent: bool = True  # no reasoning was said

    def __post_init__(self) -> None:
        self.thought = self.begun

    @property
    def over(self) -> bool:
        """Whether nothing that comes is reasoning."""
        return self._place in (_Place.BEHIND, _Place.CONTENT)

    @property
    def plain(self) -> bool:
        """Whether nothing is looked for in what comes."""
        return self.over

    def read(self, text: str) -> Read:
        """More of the answer."""
        if self._place is _Place.BEFORE:
            text = self._opened(text)
        reasoning = ""
        if self._place is _Place.WITHIN:
            reasoning, text = self._within(text)
        if self._place is _Place.BEHIND:
            text = text.lstrip(SPACE)
            self._place = _Place.CONTENT if text else _Place.BEHIND
        return (reasoning if self.tells else ""), text

    def finish(self) -> Read:
        """What was held back: no more text comes."""
        held, self._mark = self._taken_space() + self._mark, ""
        if not self.thought:
            return "", held
        held = held.lstrip(SPACE) if self._silent else held
        return (held if self.tells else ""), ""

    def _opened(self, text: str) -> str:
        """What follows the opening mark, or stands where none is; nothing while it may come."""
        text, openings = self._mark + text, self.form.openings
        start = text.lstrip(SPACE)
        if any(len(start) < len(one) and one.startswith(start) for one in openings):
            self._space.append(text[: len(text) - len(start)])
            self._mark = start
            return ""
        self._mark, self.thought = "", self.begun or start.startswith(openings)
        space = self._taken_space()
        self._place = _Place.WITHIN if self.thought else _Place.CONTENT
        opened = next((one for one in openings if start.startswith(one)), "")
        return start.removeprefix(opened) if self.thought else space + text

    def _within(self, text: str) -> Read:
        """What is reasoning, and what follows it."""
        text, self._mark = self._mark + text, ""
        reasoning, end, rest = self._ended(text)
        if end:
            self._place = _Place.BEHIND
        else:
            ends = *self.form.closings, *self.form.calls
            self._mark = max((partial_marker(text, mark) for mark in ends), key=len)
            reasoning = text[: len(text) - len(self._mark)]
        said = self._said(reasoning)
        if end:
            self._space.clear()
        return said, rest

    def _ended(self, text: str) -> tuple[str, str, str]:
        """Reasoning, what ends it, and what follows; a mark of calls is part of that."""
        ends = *self.form.closings, *self.form.calls
        places = {mark: place for mark in ends if (place := text.find(mark)) >= 0}
        if not places:
            return text, "", ""
        first = min(places, key=places.__getitem__)
        reasoning, rest = text[: places[first]], text[places[first] :]
        return reasoning, first, rest if first in self.form.calls else rest.removeprefix(first)

    def _said(self, text: str) -> str:
        """The text and the space before it; that behind it is held, and that before all left
        out.
        """
        said = text.rstrip(SPACE)
        before = self._taken_space() + said if said else ""
        self._space.append(text[len(said) :])
        before = before.lstrip(SPACE) if self._silent else before
        self._silent = self._silent and not said
        return before

    def _taken_space(self) -> str:
        space = "".join(self._space)
        self._space.clear()
        return space
