"""An answer as it is told in items: pieces come in, events go out, and items are kept.

piece: reasoning, text ──▶ the item that is open grows, or is over and another begins
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from secrets import token_hex

import msgspec
from msgspec import UNSET, Raw

from api.choices import TextPiece
from api.logprobs import LogprobFormatter
from api.responses.events import Event, delta_frame, frame_of, until_delta
from api.responses.growing import Growing, Kind
from api.responses.namespaces import Place
from api.responses.shapes import Item, Status
from api.responses.tokens import Untold
from api.tools.deltas import CallDelta, ToolCallStream
from engine.request import FinishReason


@dataclass(slots=True)
class Story:
    """Of one choice. `items` are over; calls are read out of the text by a `teller`, and told
    of by their `places`, where they are in a namespace.

    Ids of items are made up: a client's name for its request may come again.
    """

    telling: LogprobFormatter
    teller: ToolCallStream | None = None
    places: Mapping[str, Place] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)
    open: Growing | None = None
    finish: FinishReason | None = None
    _number: int = -1
    _name: str = field(default_factory=lambda: token_hex(12))
    _begin: bytes = b""  # of the deltas of what is open
    _untold: Untold = field(default_factory=Untold)

    def number(self) -> int:
        """The next event's."""
        self._number += 1
        return self._number

    @property
    def speaks(self) -> bool:
        """Whether more text is but another delta of the message that is open."""
        return self.teller is None and self.open is not None and self.open.kind is Kind.MESSAGE

    def spoken(self, text: str) -> bytes:
        """More text, while it `speaks`."""
        assert self.open is not None
        self.open.said.append(text)
        return delta_frame(self._begin, text, self.number())

    def add(self, piece: TextPiece) -> bytes:
        """Events of all that a piece says."""
        if piece.scored_tokens and (told := self.telling.chat(piece.scored_tokens)):
            self._untold.tokens += told.content
        frames = [self._grown(Kind.REASONING, piece.reasoning)] if piece.reasoning else []
        said = self._read(piece)
        frames += map(self._told, said)
        if not any(isinstance(one, str) for one in said) and frames:
            self._untold.tokens.clear()
        if piece.finish is not None:
            frames.append(self._over(piece.finish))
        return b"".join(frames)

    def cut(self) -> Sequence[Item]:
        """What there is, while something is open."""
        if self.open is None:
            return self.items
        return [*self.items, self.open.item(self._status(self.open, "incomplete"))]

    def _read(self, piece: TextPiece) -> Sequence[str | CallDelta]:
        if self.teller is None:
            return [piece.text] if piece.text else []
        return self.teller.read(piece.text, piece.finish)

    def _told(self, said: str | CallDelta) -> bytes:
        if isinstance(said, str):
            return self._grown(Kind.MESSAGE, said) if said else b""
        begun, kind = b"", Kind.CALL if said.custom is UNSET else Kind.CUSTOM
        if said.id is not UNSET and said.name is not UNSET:
            begun = self._begun(kind, said.id, said.name)
        return begun + (self._grown(kind, said.added) if said.added else b"")

    def _grown(self, kind: Kind, text: str) -> bytes:
        begun = b"" if self.open and self.open.kind is kind else self._begun(kind)
        assert self.open is not None
        tokens = self._untold.of(text) if kind is Kind.MESSAGE and self._untold.tokens else ()
        told = [Raw(msgspec.json.encode(one)) for one in tokens]
        self.open.said.append(text)
        if not told:
            return begun + delta_frame(self._begin, text, self.number())
        self.open.told += told
        delta = msgspec.structs.replace(
            self.open.delta(told), delta=text, sequence_number=self.number()
        )
        return begun + frame_of(delta)

    def _begun(self, kind: Kind, call_id: str = "", name: str = "") -> bytes:
        """Another item; the one before it is over."""
        ended = self._ended("completed")
        index = len(self.items)
        item_id = f"{kind.prefix}{self._name}{index:04d}"
        space, name = self.places.get(name, (UNSET, name))
        self.open = Growing(kind, item_id, index, call_id, name, space)
        self._begin = until_delta(self.open.delta())
        return ended + _framed(self.open.begin(self.number))

    def _ended(self, status: Status) -> bytes:
        if self.open is None:
            return b""
        status = self._status(self.open, status)
        said = _framed(self.open.end(status, self.number))
        self.items.append(self.open.item(status))
        self.open = None
        return said

    def _status(self, item: Growing, status: Status) -> Status:
        """What is given to a custom tool does not tell whether that was all of it."""
        if item.kind is not Kind.CUSTOM or self.teller is None:
            return status
        return "completed" if self.teller.is_whole(item.call_id) else "incomplete"

    def _over(self, finish: FinishReason) -> bytes:
        """An answer that came to its end has a message, or calls."""
        self.finish = finish
        if finish is FinishReason.LENGTH:
            return self._ended("incomplete")
        only_thought = not self.items and (not self.open or self.open.kind is Kind.REASONING)
        begun = self._begun(Kind.MESSAGE) if only_thought else b""
        return begun + self._ended("completed")


def _framed(events: Sequence[Event]) -> bytes:
    return b"".join(map(frame_of, events))
