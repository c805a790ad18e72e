"""One choice's answer, piece by piece, of a model that puts marks around its content as well.

    <think>\n Let me see. \n</think>\n<answer>\nIt is 4.\n</answer>
             ───────────                          ────────

Marks around content count once: the first before all of it, and the next that closes it. What
follows is content as well, such as calls. White space beside a mark is part of it.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from api.reasoning.reader import Read, ReasoningReader
from api.tools.parsing.output import SPACE, partial_marker


class _Place(Enum):
    BEFORE = auto()  # of the mark that opens, if one comes
    OPENED = auto()  # and nothing came behind it
    WITHIN = auto()
    CLOSED = auto()  # and nothing came behind it
    CONTENT = auto()


@dataclass(slots=True)
class AnswerReader:
    """Takes marks out of the content that another reader finds."""

    inner: ReasoningReader
    opens: str
    closes: str
    thought: bool = field(init=False)
    _place: _Place = _Place.BEFORE
    _space: list[str] = field(default_factory=list)  # it may stand beside a mark
    _mark: str = ""  # the beginning of one

    def __post_init__(self) -> None:
        self.thought = self.inner.thought

    @property
    def over(self) -> bool:
        """Whether nothing that comes is reasoning."""
        return self.inner.over

    @property
    def plain(self) -> bool:
        """Whether nothing is looked for in what comes."""
        return self.inner.plain and self._place is _Place.CONTENT

    def read(self, text: str) -> Read:
        """More of the answer."""
        return self._told(self.inner.read(text))

    def finish(self) -> Read:
        """What was held back: no more text comes."""
        reasoning, content = self._told(self.inner.finish())
        return reasoning, content + self._taken_space() + self._mark

    def _told(self, read: Read) -> Read:
        reasoning, content = read
        self.thought = self.inner.thought
        return reasoning, self._content(content) if content else ""

    def _content(self, text: str) -> str:
        if self._place is _Place.BEFORE:
            text = self._opened(text)
        if self._place is _Place.OPENED:
            text = self._behind(text, _Place.WITHIN)
        said = ""
        if self._place is _Place.WITHIN:
            said, text = self._within(text)
        if self._place is _Place.CLOSED:
            text = self._behind(text, _Place.CONTENT)
        return said + text

    def _opened(self, text: str) -> str:
        """What follows the mark, or stands where none is; nothing while it may come."""
        text, self._mark = self._mark + text, ""
        start = text.lstrip(SPACE)
        self._space.append(text[: len(text) - len(start)])
        if len(start) < len(self.opens) and self.opens.startswith(start):
            self._mark = start
            return ""
        if start.startswith(self.opens):
            self._place = _Place.OPENED
            self._space.clear()
            return start.removeprefix(self.opens)
        self._place = _Place.CONTENT
        return self._taken_space() + start

    def _behind(self, text: str, place: _Place) -> str:
        text = text.lstrip(SPACE)
        self._place = place if text else self._place
        return text

    def _within(self, text: str) -> Read:
        """What is content for sure, and what follows the mark that closes it."""
        text, self._mark = self._mark + text, ""
        inside, closes, rest = text.partition(self.closes)
        if closes:
            self._place = _Place.CLOSED
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
