"""Builds a message: text pieces go in, stream events come out, and whole blocks are kept.

At most one block is open: another kind of text, or another call, closes it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from msgspec import UNSET

from api.choices import TextPiece
from api.messages.events import Event, delta_frame, delta_prefix, frame_of
from api.messages.open_block import BlockKind, OpenBlock
from api.messages.shapes import Block
from api.tools.deltas import CallDelta, ToolCallStream
from engine.request import FinishReason


@dataclass(slots=True)
class MessageBuilder:
    """Builds one message. A `call_stream`, if any, parses tool calls out of the text.
    `hide_thinking`: reasoning is sent in the block's signature alone.
    """

    call_stream: ToolCallStream | None = None
    hide_thinking: bool = False
    blocks: list[Block] = field(default_factory=list)
    finish: FinishReason | None = None
    stop_string: str | None = None
    _open: OpenBlock | None = None
    _delta_prefix: bytes = b""  # how all delta events of the open block begin

    @property
    def can_append(self) -> bool:
        """Whether more text is just another delta of the open text block."""
        in_text = self._open is not None and self._open.kind is BlockKind.TEXT
        return self.call_stream is None and in_text

    @property
    def has_whole_calls(self) -> bool:
        """Whether the message has calls, and all of them are whole."""
        return self.call_stream is not None and self.call_stream.whole

    def append_text(self, text: str) -> bytes:
        """The event of more text; only while it `can_append`."""
        assert self._open is not None
        self._open.texts.append(text)
        return delta_frame(self._delta_prefix, text)

    def add_piece(self, piece: TextPiece) -> bytes:
        """The events of a piece of the answer."""
        frames = self._append(BlockKind.THINKING, piece.reasoning)
        for delta in self._read(piece):
            if isinstance(delta, str):
                frames += self._append(BlockKind.TEXT, delta)
            else:
                frames += self._add_call_delta(delta)
        if piece.finish is not None:
            self.finish = piece.finish
            self.stop_string = piece.stop_reason if isinstance(piece.stop_reason, str) else None
            frames += self._close_block()
        return frames

    def _read(self, piece: TextPiece) -> Sequence[str | CallDelta]:
        if self.call_stream is None:
            return [piece.text]
        return self.call_stream.read(piece.text, piece.finish)

    def _add_call_delta(self, delta: CallDelta) -> bytes:
        frames = b""
        if delta.id is not UNSET and delta.name is not UNSET:
            frames = self._open_block(BlockKind.TOOL_USE, delta.id, delta.name)
        return frames + self._append(BlockKind.TOOL_USE, delta.added)

    def _append(self, kind: BlockKind, text: str) -> bytes:
        if not text:
            return b""
        frames = b"" if self._open and self._open.kind is kind else self._open_block(kind)
        assert self._open is not None
        self._open.texts.append(text)
        shown = "" if self._open.hidden else text  # empty deltas keep clients from timing out
        return frames + delta_frame(self._delta_prefix, shown)

    def _open_block(self, kind: BlockKind, call_id: str = "", name: str = "") -> bytes:
        """Close the open block, if any, and open another."""
        frames = self._close_block()
        hidden = kind is BlockKind.THINKING and self.hide_thinking
        self._open = OpenBlock(kind, len(self.blocks), hidden, call_id, name)
        self._delta_prefix = delta_prefix(self._open.empty_delta())
        return frames + frame_of(self._open.start_event())

    def _close_block(self) -> bytes:
        if self._open is None:
            return b""
        frames = _frames(self._open.stop_events())
        self.blocks.append(self._open.block())
        self._open = None
        return frames


def _frames(events: Iterable[Event]) -> bytes:
    return b"".join(map(frame_of, events))
