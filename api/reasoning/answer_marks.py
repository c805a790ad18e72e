"""Reads one choice's answer of a model that puts marks around its content as well.

    <think>\n Let me see. \n</think>\n<answer>\nIt is 4.\n</answer>
             ───────────                          ────────

Marks around content count once: the first before all of it, and the next that closes it. What
follows is content as well, such as calls. White space beside a mark is part of it.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from api.reasoning.reader import ReasoningReader, Split
from api.tools.parsing.output import SPACE, partial_marker


class _Section(Enum):
    BEFORE = auto()  # before the opening mark, if one comes
    OPENED = auto()  # and no text has followed it yet
    WITHIN = auto()
    CLOSED = auto()  # and no text has followed it yet
    CONTENT = auto()


@dataclass(slots=True)
class MarkedAnswerReader:
    """Takes marks out of the content that another reader, `inner`, finds."""

    inner: ReasoningReader
    opens: str
    closes: str
    found_reasoning: bool = field(init=False)
    _place: _Section = _Section.BEFORE
    _space: list[str] = field(default_factory=list)  # it may belong to a mark
    _mark: str = ""  # the beginning of one

    def __post_init__(self) -> None:
        self.found_reasoning = self.inner.found_reasoning

    @property
    def content_start(self) -> int:
        """See ReasoningReader."""
        return self.inner.content_start

    @property
    def over(self) -> bool:
        """Whether the reasoning has ended."""
        return self.inner.over

    @property
    def plain(self) -> bool:
        """Whether the rest of the answer is content without marks."""
        return self.inner.plain and self._place is _Section.CONTENT

    def read(self, text: str) -> Split:
        """Read more of the answer."""
        return self._told(self.inner.read(text))

    def finish(self) -> Split:
        """Return the text that was held back, as no more text comes."""
        reasoning, content = self._told(self.inner.finish())
        return reasoning, content + self._taken_space() + self._mark

    def _told(self, read: Split) -> Split:
        reasoning, content = read
        self.found_reasoning = self.inner.found_reasoning
        return reasoning, self._content(content) if content else ""

    def _content(self, text: str) -> str:
        if self._place is _Section.BEFORE:
            text = self._opened(text)
        if self._place is _Section.OPENED:
            text = self._behind(text, _Section.WITHIN)
        said = ""
        if self._place is _Section.WITHIN:
            said, text = self._within(text)
        if self._place is _Section.CLOSED:
            text = self._behind(text, _Section.CONTENT)
        return said + text

    def _opened(self, text: str) -> str:
        """The text after the opening mark, or all if there is none; '' while it may come."""
        text, self._mark = self._mark + text, ""
        start = text.lstrip(SPACE)
        self._space.append(text[: len(text) - len(start)])
        if len(start) < len(self.opens) and self.opens.startswith(start):
            self._mark = start
            return ""
        if start.startswith(self.opens):
            self._place = _Section.OPENED
            self._space.clear()
            return start.removeprefix(self.opens)
        self._place = _Section.CONTENT
        return self._taken_space() + start

    def _behind(self, text: str, place: _Section) -> str:
        text = text.lstrip(SPACE)
        self._place = place if text else self._place
        return text

    def _within(self, text: str) -> Split:
        """The part that is certainly content, and the text after the closing mark."""
        text, self._mark = self._mark + text, ""
        inside, closes, rest = text.partition(self.closes)
        if closes:
            self._place = _Section.CLOSED
        else:
            self._mark = partial_marker(text, self.closes)
            inside = text[: len(text) - len(self._mark)]
        said = inside.rstrip(SPACE)
        before = self._taken_space() + said if said else ""
        if closes:
            self._space.clear()
        else:
            self._space.append(inside[len(said) :])
        return before, rest

    def _taken_space(self) -> str:
        space = "".join(self._space)
        self._space.clear()
        return space
