"""A message as its blocks come, told as events: what the model thinks, says and calls.

Of all blocks at most one is open: another kind of text, or another call, ends it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from msgspec import UNSET

from api.choices import TextPiece
from api.messages.events import Event, delta_frame, frame_of, until_delta
from api.messages.growing import Growing, Kind
from api.messages.shapes import Block
from api.tools.deltas import CallDelta, ToolCallStream
from engine.request import FinishReason


@dataclass(slots=True)
class Story:
    """Of one message. Calls are read out of its text where there is a `teller`; thoughts are
    told in signatures alone where it `hides` them.
    """

    teller: ToolCallStream | None = None
    hides: bool = False
    blocks: list[Block] = field(default_factory=list)
    finish: FinishReason | None = None
    stop_string: str | None = None
    _open: Growing | None = None
    _begin: bytes = b""  # of the deltas of what is open

    @property
    def speaks(self) -> bool:
        """Whether more text is but another delta of the text that is open."""
        return self.teller is None and self._open is not None and self._open.kind is Kind.TEXT

    @property
    def calls(self) -> bool:
        """Whether there are calls, and all of them are whole."""
        return self.teller is not None and self.teller.whole

    def spoken(self, text: str) -> bytes:
        """More text, while it `speaks`."""
        assert self._open is not None
        self._open.said.append(text)
        return delta_frame(self._begin, text)

    def add(self, piece: TextPiece) -> bytes:
        """Events of all that a piece says."""
        said = self._grown(Kind.THINKING, piece.reasoning)
        for one in self._read(piece):
            said += self._grown(Kind.TEXT, one) if isinstance(one, str) else self._called(one)
        if piece.finish is not None:
            self.finish = piece.finish
            self.stop_string = piece.stop_reason if isinstance(piece.stop_reason, str) else None
            said += self._ended()
        return said

    def _read(self, piece: TextPiece) -> Sequence[str | CallDelta]:
        if self.teller is None:
            return [piece.text]
        return self.teller.read(piece.text, piece.finish)

    def _called(self, said: CallDelta) -> bytes:
        begun = b""
        if said.id is not UNSET and said.name is not UNSET:
            begun = self._begun(Kind.TOOL_USE, said.id, said.name)
        return begun + self._grown(Kind.TOOL_USE, said.added)

    def _grown(self, kind: Kind, text: str) -> bytes:
        if not text:
            return b""
        begun = b"" if self._open and self._open.kind is kind else self._begun(kind)
        assert self._open is not None
        self._open.said.append(text)
        told = "" if self._open.hidden else text  # clients give up on who says nothing
        return begun + delta_frame(self._begin, told)

    def _begun(self, kind: Kind, call_id: str = "", name: str = "") -> bytes:
        """Another block; the one before it is over."""
        ended = self._ended()
        hidden = kind is Kind.THINKING and self.hides
        self._open = Growing(kind, len(self.blocks), hidden, call_id, name)
        self._begin = until_delta(self._open.delta())
        return ended + frame_of(self._open.begin())

    def _ended(self) -> bytes:
        if self._open is None:
            return b""
        said = _framed(self._open.end())
        self.blocks.append(self._open.block())
        self._open = None
        return said


def _framed(events: Iterable[Event]) -> bytes:
    return b"".join(map(frame_of, events))
