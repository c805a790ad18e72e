"""One choice's answer of gpt-oss, piece by piece: messages in channels, OpenAI's Harmony.

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

from api.reasoning.reader import Read
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
PAST = ("reasoning_content", "thinking", "reasoning")  # the first that is there counts
_RECIPIENT = re.compile(r"\bto=functions\.([^\s<]+)")
_NAME = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_END = re.compile("|".join(map(re.escape, ENDS)))
_HEADERS = (CHANNEL, START, "to=")


class _Place(Enum):
    HEADER = auto()
    REASONING = auto()
    CONTENT = auto()
    CALLING = auto()


@dataclass(slots=True)
class ChannelReader:
    """`begun`: the answer begins in the middle of reasoning. Unless it `tells`, that is left
    out. See ThoughtReader.
    """

    begun: bool = False
    tells: bool = True
    thought: bool = field(init=False)
    plain: bool = False  # there are no messages any more: nothing is looked for
    _place: _Place = field(init=False)
    _held: str = ""  # of a header, or what may become a mark

    def __post_init__(self) -> None:
        self.thought = self.begun
        self._place = _Place.REASONING if self.begun else _Place.HEADER

    @property
    def over(self) -> bool:
        """Whether what comes next is no reasoning; another message may have some."""
        return self._place in (_Place.CONTENT, _Place.CALLING)

    def read(self, text: str) -> Read:
        """More of the answer."""
        reasoning, content = "", ""
        text, self._held = self._held + text, ""
        while text:
            if self._place is _Place.HEADER:
                said, text = self._header(text)
                content += said
                continue
            body, end = self._body(text)
            if self._place is _Place.REASONING:
                reasoning += body
            else:
                content += body
            text = end if end.startswith(_HEADERS) else end.partition("|>")[2]
            self._place = _Place.HEADER if end else self._place
        return (reasoning if self.tells else ""), content

    def finish(self) -> Read:
        """No more text comes: half a mark is text, and half a header says nothing."""
        held, self._held = self._held, ""
        if self._place is _Place.HEADER:
            header = self.thought or held.lstrip().startswith((CHANNEL, START))
            return "", "" if header else held
        if self._place is _Place.REASONING:
            return (held if self.tells else ""), ""
        return "", held

    def _header(self, text: str) -> Read:
        """What it says as content, and what follows it; held until it is whole."""
        header, message, rest = text.partition(MESSAGE)
        longest = LONGEST_HEADER if message else LONGEST_HEADER + len(MESSAGE)
        if not _may_begin(text) or len(header) > longest:
            self._place, self.plain = _Place.CONTENT, True
            return "", text
        if not message:
            self._held = text
            return "", ""
        if recipient := _RECIPIENT.search(header):
            self._place = _Place.CALLING
            return f"{FUNCTION}{recipient[1]}{MESSAGE}", rest
        name = _NAME.search(header)
        channel = name[1] if name else ""
        self._place = _Place.REASONING if channel == ANALYSIS else _Place.CONTENT
        self.thought = self.thought or channel == ANALYSIS
        return "", rest

    def _body(self, text: str) -> Read:
        """A message up to its end, and that end with what follows; half a mark is held."""
        if self.plain:
            return text, ""
        if end := _END.search(text):
            return text[: end.start()], text[end.start() :]
        self._held = max((partial_marker(text, mark) for mark in ENDS), key=len)
        return text[: len(text) - len(self._held)], ""


def _may_begin(text: str) -> bool:
    """Whether it is, or may become, a header."""
    start = text.lstrip()
    return any(start.startswith(one) or one.startswith(start) for one in _HEADERS)


def in_channels(message: Mapping[str, Any]) -> dict[str, Any]:
    """An assistant's past message for the template, which refuses a call with reasoning and
    content: what it said between them follows as the message that it was.
    """
    thought = next((one for name in PAST if (one := message.get(name)) is not None), None)
    content = message["content"]
    if not (isinstance(thought, str) and thought and content and "tool_calls" in message):
        return dict(message)
    kept = {name: value for name, value in message.items() if name not in PAST}
    return {**kept, "content": "", "thinking": f"{thought}{PREAMBLE}{content}"}
