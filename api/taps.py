"""Taps: a fast path from the Generator to the client's socket for tokens that are only text.

    generator ──▶ ChunkTap.take ──▶ text of the token ──▶ chunk around the text ──▶ outlet

Everything else (the first token, log-probabilities, the end) takes the stream of events.
"""

from dataclasses import dataclass
from typing import Protocol

import msgspec

from api.choices import ChoiceState
from api.envelopes import AnswerWriter
from api.gate import AdmittedRequest


class Outlet(Protocol):
    """The body of a streamed HTTP response that has begun."""

    def ready(self) -> bool:
        """Whether it can take more bytes without waiting."""

    def write(self, body: bytes) -> None:
        """Append to the body."""


class DeltaWriter(Protocol):
    """Writes text as delta events of a Responses or Messages stream."""

    @property
    def can_append(self) -> bool:
        """Whether more text is just another delta of the part that is open."""

    def append_text(self, text: str) -> bytes:
        """The event of more text; only while it `can_append`."""


@dataclass(frozen=True, slots=True)
class ChunkTap:
    """A Tap that writes each token's text to the outlet as a chunk of the writer."""

    writer: AnswerWriter
    outlet: Outlet
    choice: ChoiceState
    admitted: AdmittedRequest

    def take(self, tokens: tuple[int, ...]) -> bool:
        """See Tap; False until the writer has a chunk to copy, and while reasoning may come."""
        around = self.writer.around(self.choice.index)
        if around is None or not self.outlet.ready() or not self.choice.reasoning_done:
            return False
        self.admitted.record_tokens(len(tokens))
        if text := self.choice.add_plain_tokens(tokens):
            self.outlet.write(around[0] + msgspec.json.encode(text) + around[1])
        return True


@dataclass(frozen=True, slots=True)
class DeltaTap:
    """A Tap that writes each token's text as a delta event; see ChunkTap."""

    builder: DeltaWriter
    outlet: Outlet
    choice: ChoiceState
    admitted: AdmittedRequest

    def take(self, tokens: tuple[int, ...]) -> bool:
        """See Tap; False until a text part is open, and while reasoning may come."""
        if not (self.builder.can_append and self.outlet.ready() and self.choice.reasoning_done):
            return False
        self.admitted.record_tokens(len(tokens))
        if text := self.choice.add_plain_tokens(tokens):
            self.outlet.write(self.builder.append_text(text))
        return True
