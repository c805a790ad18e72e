"""Reads one choice's answer of Kimi K3: elements of reasoning, text and calls.

    Hm.<|close|>think<|sep|><|open|>response<|sep|>It is 4.<|close|>response<|sep|>
    ───                                            ────────

The prompt usually ends within the first element. Tags are no content, but for those of calls
(`<|open|>tools<|sep|>`), which stay as they are, for whoever reads calls. White space is part
of an element. (The dialect is in `api/tools/dialects/kimi_elements.py`.)
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from api.reasoning.reader import Split
from api.reasoning.turning import TurningReader
from api.tools.dialects.kimi_elements import (
    MESSAGE,
    RESPONSE,
    THINK,
    TOOLS,
    closing,
    opening,
)
from api.tools.parsing.output import partial_marker


class _Element(Enum):
    REASONING = auto()
    TEXT = auto()
    CALLS = auto()


_WRAPPERS = opening(RESPONSE), closing(RESPONSE), closing(MESSAGE)
_AFTER: Mapping[_Element, Mapping[str, _Element]] = {
    _Element.REASONING: {
        opening(THINK): _Element.REASONING,
        **dict.fromkeys((closing(THINK), opening(RESPONSE)), _Element.TEXT),
        opening(TOOLS): _Element.CALLS,
    },
    _Element.TEXT: {
        opening(THINK): _Element.REASONING,
        **dict.fromkeys((closing(THINK), *_WRAPPERS), _Element.TEXT),
        opening(TOOLS): _Element.CALLS,
    },
    _Element.CALLS: {closing(TOOLS): _Element.TEXT},
}
"""The tags that count in an element, and the element after each."""
_KEPT = opening(TOOLS), closing(TOOLS)
_TAGS = {place: re.compile("|".join(map(re.escape, tags))) for place, tags in _AFTER.items()}


@dataclass(slots=True)
class ElementReader(TurningReader):
    """Splits an answer in elements; `plain` stays false, as tags may come at any time."""

    _place: _Element = field(init=False)

    def __post_init__(self) -> None:
        TurningReader.__post_init__(self)
        self._place = _Element.REASONING if self.starts_open else _Element.TEXT

    @property
    def over(self) -> bool:
        """Whether the open element is content."""
        return self._place is not _Element.REASONING

    def read(self, text: str) -> Split:
        """Read more of the answer."""
        reasoning, content = "", ""
        self._num_read += len(text)
        text, self._held = self._held + text, ""
        while text:
            body, tag, rest = self._body(text)
            if self._place is _Element.REASONING:
                reasoning += body
                body, text = "", text[len(body) :]
            body += tag if tag in _KEPT else ""
            content += body
            self._begin_content(body, text)
            self._pass(tag)
            text = rest
        return (reasoning if self.include_reasoning else ""), content

    def finish(self) -> Split:
        """Return what was held back, as no more text comes."""
        held, self._held = self._held, ""
        if self._place is _Element.REASONING:
            return (held if self.include_reasoning else ""), ""
        self._begin_content(held, held)
        return "", held

    def _body(self, text: str) -> tuple[str, str, str]:
        """The text before a tag, the tag, and the rest; what may become a tag is held back."""
        if found := _TAGS[self._place].search(text):
            return text[: found.start()], found[0], text[found.end() :]
        self._held = max((partial_marker(text, tag) for tag in _AFTER[self._place]), key=len)
        return text[: len(text) - len(self._held)], "", ""

    def _pass(self, tag: str) -> None:
        if tag:
            self._place = _AFTER[self._place][tag]
        self.found_reasoning = self.found_reasoning or not self.over
