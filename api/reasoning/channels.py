"""Reads one choice's answer of gpt-oss: messages in channels, OpenAI's Harmony format.

    <|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>It is
                                  ───                                                 ─────

The prompt ends within the header of the first message. What is in the channel `analysis` is
reasoning; all else is content, as are preambles of calls in `commentary`. A message to a
function is a call: it stays in the content, behind one form of its header, for whoever reads
calls. What comes where a header has to, and is none, ends all messages: it is content.
(https://raw.githubusercontent.com/openai/openai-cookbook/main/articles/openai-harmony.md)
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from api.reasoning.reader import Split
from api.reasoning.turning import TurningReader
from api.tools.dialects.harmony import (
    CHANNEL,
    ENDS,
    FUNCTION,
    LONGEST_HEADER,
    MESSAGE,
    START,
)
from api.tools.parsing.output import partial_marker

ANALYSIS = "analysis"
PREAMBLE = f"<|end|>{START}assistant{CHANNEL}commentary{MESSAGE}"
REASONING_FIELDS = (
    "reasoning_content",
    "thinking",
    "reasoning",
)  # the first of them that occurs counts
_RECIPIENT = re.compile(r"\bto=functions\.([^\s<]+)")
_NAME = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_END = re.compile("|".join(map(re.escape, ENDS)))
_HEADERS = (CHANNEL, START, "to=")


class _Section(Enum):
    HEADER = auto()
    REASONING = auto()
    CONTENT = auto()
    CALLING = auto()


@dataclass(slots=True)
class ChannelReader(TurningReader):
    """Splits an answer in Harmony format."""

    _place: _Section = field(init=False)

    def __post_init__(self) -> None:
        TurningReader.__post_init__(self)
        self._place = _Section.REASONING if self.starts_open else _Section.HEADER

    @property
    def over(self) -> bool:
        """Whether the open message is content; a later one may be reasoning."""
        return self._place in (_Section.CONTENT, _Section.CALLING)

    def read(self, text: str) -> Split:
        """Read more of the answer."""
        reasoning, content = "", ""
        self._num_read += len(text)
        text, self._held = self._held + text, ""
        while text:
            if self._place is _Section.HEADER:
                said, text = self._header(text)
                content += said
                self._begin_content(said, text)
                continue
            body, end = self._body(text)
            if self._place is _Section.REASONING:
                reasoning += body
            else:
                content += body
                self._begin_content(body, text)
            text = end if end.startswith(_HEADERS) else end.partition("|>")[2]
            self._place = _Section.HEADER if end else self._place
        return (reasoning if self.include_reasoning else ""), content

    def finish(self) -> Split:
        """Return what was held back, as no more text comes; half a header is dropped."""
        held, self._held = self._held, ""
        if self._place is _Section.HEADER:
            header = self.found_reasoning or held.lstrip().startswith((CHANNEL, START))
            return "", "" if header else held
        if self._place is _Section.REASONING:
            return (held if self.include_reasoning else ""), ""
        return "", held

    def _header(self, text: str) -> Split:
        """The content that a header stands for, and what follows; held until it is whole."""
        header, message, rest = text.partition(MESSAGE)
        longest = LONGEST_HEADER if message else LONGEST_HEADER + len(MESSAGE)
        if not _may_begin(text) or len(header) > longest:
            self._place, self.plain = _Section.CONTENT, True
            return "", text
        if not message:
            self._held = text
            return "", ""
        if recipient := _RECIPIENT.search(header):
            self._place = _Section.CALLING
            return f"{FUNCTION}{recipient[1]}{MESSAGE}", rest
        name = _NAME.search(header)
        channel = name[1] if name else ""
        self._place = _Section.REASONING if channel == ANALYSIS else _Section.CONTENT
        self.found_reasoning = self.found_reasoning or channel == ANALYSIS
        return "", rest

    def _body(self, text: str) -> Split:
        """A message up to its end mark, and the rest; an incomplete mark is held back."""
        if self.plain:
            return text, ""
        if end := _END.search(text):
            return text[: end.start()], text[end.start() :]
        self._held = max((partial_marker(text, mark) for mark in ENDS), key=len)
        return text[: len(text) - len(self._held)], ""


def _may_begin(text: str) -> bool:
    """Whether the text begins with a header, or may become one."""
    start = text.lstrip()
    return any(start.startswith(one) or one.startswith(start) for one in _HEADERS)


def harmony_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """An assistant's past message for gpt-oss's template, which refuses a tool call with both
    reasoning and content: the content is put after the reasoning, with its header.
    """
    thought = next(
        (one for name in REASONING_FIELDS if (one := message.get(name)) is not None), None
    )
    content = message["content"]
    if not (isinstance(thought, str) and thought and content and "tool_calls" in message):
        return dict(message)
    kept = {name: value for name, value in message.items() if name not in REASONING_FIELDS}
    return {**kept, "content": "", "thinking": f"{thought}{PREAMBLE}{content}"}
