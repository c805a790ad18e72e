"""Builds a response's output: text pieces go in, stream events come out, whole items are kept.

At most one item is open: another kind of text, or another call, closes it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from secrets import token_hex

import msgspec
from msgspec import UNSET, Raw

from api.choices import TextPiece
from api.logprobs import LogprobFormatter, ScoredToken
from api.responses.events import Event, delta_frame, delta_prefix, frame_of
from api.responses.namespaces import NamespacedName
from api.responses.open_item import ItemKind, OpenItem
from api.responses.shapes import Item, Status
from api.responses.tokens import PendingTokens
from api.tools.deltas import CallDelta, ToolCallStream
from engine.request import FinishReason


@dataclass(slots=True)
class ResponseBuilder:
    """Builds the output of one response. `items` are the completed ones. A `call_stream`, if
    any, parses tool calls out of the text; `namespaced` maps flat names to functions in a
    namespace. Tokens that are not `visible` have no text.

    Ids of items are random, as a client may send the same request id again.
    """

    logprob_formatter: LogprobFormatter
    visible: Callable[[int], bool]
    call_stream: ToolCallStream | None = None
    namespaced: Mapping[str, NamespacedName] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)
    open: OpenItem | None = None
    finish: FinishReason | None = None
    _number: int = -1
    _name: str = field(default_factory=lambda: token_hex(12))
    _delta_prefix: bytes = b""  # how all delta events of the open item begin
    _before_text: list[ScoredToken] = field(default_factory=list)  # no text has begun yet
    _has_text: bool = False
    _pending_tokens: PendingTokens = field(default_factory=PendingTokens)
    _starts: Iterator[int] = field(default_factory=lambda: iter(()))  # of texts just read
    _cleared_at: int = 0  # no token is pending of text before this
    _num_read: int = 0  # characters of text

    def next_number(self) -> int:
        """The sequence number of the next event."""
        self._number += 1
        return self._number

    @property
    def can_append(self) -> bool:
        """Whether more text is just another delta of the open message."""
        in_message = self.open is not None and self.open.kind is ItemKind.MESSAGE
        return self.call_stream is None and in_message

    def append_text(self, text: str) -> bytes:
        """The event of more text; only while it `can_append`."""
        assert self.open is not None
        self.open.texts.append(text)
        return delta_frame(self._delta_prefix, text, self.next_number())

    def add_piece(self, piece: TextPiece) -> bytes:
        """The events of a piece of the answer."""
        scored = self._scored_tokens(piece)
        if scored and (logprobs := self.logprob_formatter.chat(scored)):
            self._pending_tokens.tokens += logprobs.content
        frames = [self._append(ItemKind.REASONING, piece.reasoning)] if piece.reasoning else []
        deltas = self._read(piece)
        frames += map(self._add_delta, deltas)
        self._num_read += len(piece.text)
        held = piece.text and not deltas
        if frames and not held and not any(isinstance(one, str) for one in deltas):
            self._pending_tokens.clear()
            self._cleared_at = self._num_read
        if piece.finish is not None:
            frames.append(self._finish(piece.finish))
        return b"".join(frames)

    def items_so_far(self) -> Sequence[Item]:
        """All items; one that is still open is incomplete."""
        if self.open is None:
            return self.items
        return [*self.items, self.open.item(self._status(self.open, "incomplete"))]

    def _scored_tokens(self, piece: TextPiece) -> Sequence[ScoredToken]:
        """The tokens that its text or later text may be made of: none of the reasoning's."""
        scored = [one for one in piece.scored_tokens if self.visible(one.token)]
        if self._has_text:
            return scored
        self._before_text += scored
        known, start = self._before_text, piece.content_start
        if piece.text or piece.reasoning:
            self._before_text, self._has_text = [], bool(piece.text)
        if not piece.text:
            return ()
        ends = [*(one.offset for one in known[1:]), start + 1]
        return [
            one
            for one, end in zip(known, ends, strict=False)
            if one.offset >= start or end > start
        ]

    def _read(self, piece: TextPiece) -> Sequence[str | CallDelta]:
        if self.call_stream is None:
            return [piece.text] if piece.text else []
        deltas = self.call_stream.read(piece.text, piece.finish)
        self._starts = iter(self.call_stream.content_starts)
        return deltas

    def _add_delta(self, delta: str | CallDelta) -> bytes:
        if isinstance(delta, str):
            start = next(self._starts, self._cleared_at)
            behind, self._cleared_at = start - self._cleared_at, start + len(delta)
            return self._append(ItemKind.MESSAGE, delta, max(0, behind))
        frames, kind = b"", ItemKind.CALL if delta.custom is UNSET else ItemKind.CUSTOM
        if delta.id is not UNSET and delta.name is not UNSET:
            frames = self._open_item(kind, delta.id, delta.name)
        return frames + (self._append(kind, delta.added) if delta.added else b"")

    def _append(self, kind: ItemKind, text: str, behind: int = 0) -> bytes:
        """The event of more text, with `behind` characters of calls since the last one."""
        frames = b"" if self.open and self.open.kind is kind else self._open_item(kind)
        assert self.open is not None
        logprobs = list[Raw]()
        if kind is ItemKind.MESSAGE and self._pending_tokens.tokens:
            tokens = self._pending_tokens.take_for(text, behind)
            logprobs = [Raw(msgspec.json.encode(one)) for one in tokens]
        self.open.texts.append(text)
        if not logprobs:
            return frames + delta_frame(self._delta_prefix, text, self.next_number())
        self.open.logprobs += logprobs
        delta = msgspec.structs.replace(
            self.open.empty_delta(logprobs), delta=text, sequence_number=self.next_number()
        )
        return frames + frame_of(delta)

    def _open_item(self, kind: ItemKind, call_id: str = "", name: str = "") -> bytes:
        """Close the open item, if any, and open another."""
        frames = self._close_item("completed")
        index = len(self.items)
        item_id = f"{kind.id_prefix}{self._name}{index:04d}"
        space, name = self.namespaced.get(name, (UNSET, name))
        self.open = OpenItem(kind, item_id, index, call_id, name, space)
        self._delta_prefix = delta_prefix(self.open.empty_delta())
        return frames + _frames(self.open.start_events(self.next_number))

    def _close_item(self, status: Status) -> bytes:
        if self.open is None:
            return b""
        status = self._status(self.open, status)
        frames = _frames(self.open.done_events(status, self.next_number))
        self.items.append(self.open.item(status))
        self.open = None
        return frames

    def _status(self, item: OpenItem, status: Status) -> Status:
        """The status of an item: a custom tool's input does not show whether it is whole, so
        the `call_stream` is asked.
        """
        if item.kind is not ItemKind.CUSTOM or self.call_stream is None:
            return status
        return "completed" if self.call_stream.is_whole(item.call_id) else "incomplete"

    def _finish(self, finish: FinishReason) -> bytes:
        """Close the last item; an answer of reasoning alone also gets an empty message, unless
        the token limit cut it.
        """
        self.finish = finish
        if finish is FinishReason.LENGTH:
            return self._close_item("incomplete")
        open_reasoning = not self.open or self.open.kind is ItemKind.REASONING
        only_reasoning = not self.items and open_reasoning
        frames = self._open_item(ItemKind.MESSAGE) if only_reasoning else b""
        return frames + self._close_item("completed")


def _frames(events: Sequence[Event]) -> bytes:
    return b"".join(map(frame_of, events))
