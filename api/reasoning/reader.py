"""Reasoning parsers: split one choice's answer into reasoning and content, as it streams in.

    <think>\n Let me see. \n</think>\n\nIt is 4.
             ───────────               ────────

Marks count once: the first of an answer, before all else, and the next that closes it. White
space beside a mark is part of it. What may become a mark is held back, and nothing depends on
how the answer was cut into pieces.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from api.reasoning.formats import ReasoningFormat
from api.tools.parsing.output import SPACE, partial_marker

Split = tuple[str, str]
"""The reasoning and the content that became certain with a piece of text."""


class ReasoningReader(Protocol):
    """Splits reasoning from content in one choice's answer."""

    found_reasoning: bool
    """Whether any of the answer is reasoning."""

    @property
    def content_start(self) -> int:
        """How many characters of the answer come before its first content."""

    @property
    def over(self) -> bool:
        """Whether the text that comes next is not reasoning, as far as is known."""

    @property
    def plain(self) -> bool:
        """Whether all further text is content, so that it need not be read."""

    def read(self, text: str) -> Split:
        """Read more of the answer."""

    def finish(self) -> Split:
        """Return what was held back, as no more text comes."""


class _Section(Enum):
    BEFORE = auto()  # before the opening mark, if one comes
    WITHIN = auto()
    BEHIND = auto()  # after the closing mark, without content yet
    CONTENT = auto()


@dataclass(slots=True)
class MarkedReasoningReader:
    """Reads reasoning between marks. `starts_open`: the answer begins within reasoning, even
    without an opening mark. Without `include_reasoning`, reasoning is left out.
    """

    reasoning_format: ReasoningFormat
    starts_open: bool
    include_reasoning: bool = True
    found_reasoning: bool = field(init=False)  # some of the answer is reasoning
    content_start: int = 0
    _place: _Section = _Section.BEFORE
    _space: list[str] = field(default_factory=list)  # it may belong to a mark
    _mark: str = ""  # the beginning of one
    _silent: bool = True  # no reasoning was sent yet

    def __post_init__(self) -> None:
        self.found_reasoning = self.starts_open

    @property
    def over(self) -> bool:
        """Whether the reasoning has ended."""
        return self._place in (_Section.BEHIND, _Section.CONTENT)

    @property
    def plain(self) -> bool:
        """Whether all further text is content."""
        return self.over

    def read(self, text: str) -> Split:
        """See ReasoningReader."""
        if self._place is not _Section.CONTENT:
            self.content_start += len(text)
            reasoning, content = self._read(text)
            self.content_start -= len(content)
            return (reasoning if self.include_reasoning else ""), content
        return "", text

    def _read(self, text: str) -> Split:
        if self._place is _Section.BEFORE:
            text = self._opened(text)
        reasoning = ""
        if self._place is _Section.WITHIN:
            reasoning, text = self._within(text)
        if self._place is _Section.BEHIND:
            text = text.lstrip(SPACE)
            self._place = _Section.CONTENT if text else _Section.BEHIND
        return reasoning, text

    def finish(self) -> Split:
        """See ReasoningReader."""
        held, self._mark = self._taken_space() + self._mark, ""
        if not self.found_reasoning:
            self.content_start -= len(held)
            return "", held
        held = held.lstrip(SPACE) if self._silent else held
        return (held if self.include_reasoning else ""), ""

    def _opened(self, text: str) -> str:
        """The text after the opening mark, or all if there is none; '' while it may come."""
        text, openings = self._mark + text, self.reasoning_format.openings
        start, strays = text.lstrip(SPACE), self.reasoning_format.stray_closings
        first = (*openings, *strays)
        if any(len(start) < len(one) and one.startswith(start) for one in first):
            self._space.append(text[: len(text) - len(start)])
            self._mark = start
            return ""
        self._mark, self.found_reasoning = "", self.starts_open or start.startswith(openings)
        space = self._taken_space()
        if not self.found_reasoning and start.startswith(strays):
            self._place = _Section.BEHIND
            return next(start.removeprefix(one) for one in strays if start.startswith(one))
        self._place = _Section.WITHIN if self.found_reasoning else _Section.CONTENT
        opened = next((one for one in openings if start.startswith(one)), "")
        return start.removeprefix(opened) if self.found_reasoning else space + text

    def _within(self, text: str) -> Split:
        """The reasoning, and the text that follows it."""
        text, self._mark = self._mark + text, ""
        reasoning, end, rest = self._ended(text)
        if end:
            self._place = _Section.BEHIND
        else:
            ends = *self.reasoning_format.closings, *self.reasoning_format.call_openings
            self._mark = max((partial_marker(text, mark) for mark in ends), key=len)
            reasoning = text[: len(text) - len(self._mark)]
        said = self._said(reasoning)
        if end:
            self._space.clear()
        return said, rest

    def _ended(self, text: str) -> tuple[str, str, str]:
        """Split the text at a mark that ends the reasoning; a call's mark stays in the rest."""
        ends = *self.reasoning_format.closings, *self.reasoning_format.call_openings
        places = {mark: place for mark in ends if (place := text.find(mark)) >= 0}
        if not places:
            return text, "", ""
        first = min(places, key=places.__getitem__)
        reasoning, rest = text[: places[first]], text[places[first] :]
        return (
            reasoning,
            first,
            rest if first in self.reasoning_format.call_openings else rest.removeprefix(first),
        )

    def _said(self, text: str) -> str:
        """The reasoning with the white space held before it; trailing white space is held back,
        leading white space dropped.
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
