"""Plain tokens of one choice, from whoever generates them to a client's socket in one call.

    generator ──▶ Spoken.take ──▶ the choice's text ──▶ what is around a text ──▶ outlet

All that comes before such a token, and all that is more than one, comes as events of a stream.
"""

from dataclasses import dataclass
from typing import Protocol

import msgspec

from api.choices import ChoiceState
from api.envelopes import AnswerWriter
from api.gate import AdmittedRequest


class Outlet(Protocol):
    """The body of an answer that has begun."""

    def ready(self) -> bool:
        """Whether it takes more at once."""

    def write(self, body: bytes) -> None:
        """So much more of it."""


class Speaker(Protocol):
    """Whoever tells of an answer part by part."""

    @property
    def speaks(self) -> bool:
        """Whether more text is but another delta of what is open."""

    def spoken(self, text: str) -> bytes:
        """More text, while it `speaks`."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """A Tap: texts go to the outlet as events of the writer."""

    writer: AnswerWriter
    outlet: Outlet
    choice: ChoiceState
    let_in: AdmittedRequest

    def take(self, tokens: tuple[int, ...]) -> bool:
        """See Tap; not before an event has shown what is around a text, nor while more
        reasoning may come.
        """
        around = self.writer.around(self.choice.index)
        if around is None or not self.outlet.ready() or not self.choice.reasoning_done:
            return False
        self.let_in.record_tokens(len(tokens))
        if text := self.choice.add_plain_tokens(tokens):
            self.outlet.write(around[0] + msgspec.json.encode(text) + around[1])
        return True


@dataclass(frozen=True, slots=True)
class SpokenDeltas:
    """A Tap: plain tokens go to the outlet as deltas of what a story has open; see Spoken."""

    story: Speaker
    outlet: Outlet
    choice: ChoiceState
    let_in: AdmittedRequest

    def take(self, tokens: tuple[int, ...]) -> bool:
        """See Tap; not before a text is open, nor while more reasoning may come."""
        if not (self.story.speaks and self.outlet.ready() and self.choice.reasoning_done):
            return False
        self.let_in.record_tokens(len(tokens))
        if text := self.choice.add_plain_tokens(tokens):
            self.outlet.write(self.story.spoken(text))
        return True
