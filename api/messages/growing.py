"""One block of a message's content while it is being said, and what a stream tells of it.

thinking    start, deltas, signature, stop
text        start, deltas, stop
tool_use    the same
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import msgspec
from msgspec import Raw

from api.messages.events import (
    BlockDelta,
    BlockStart,
    BlockStop,
    Event,
    InputDelta,
    SignatureDelta,
    TextDelta,
    ThinkingDelta,
)
from api.messages.shapes import NOTHING, Block, TextBlock, ThinkingBlock, ToolUseBlock
from api.messages.signatures import signature_of
from api.wire import UNREADABLE


class Kind(Enum):
    """What the block is."""

    THINKING = auto()
    TEXT = auto()
    TOOL_USE = auto()


@dataclass(slots=True)
class Growing:
    """A block; `call_id` and `name` are of calls. `hidden`: it is told in its signature."""

    kind: Kind
    index: int
    hidden: bool = False
    call_id: str = ""
    name: str = ""
    said: list[str] = field(default_factory=list)

    def begin(self) -> Event:
        """Nothing was said yet."""
        match self.kind:
            case Kind.THINKING:
                return BlockStart(self.index, ThinkingBlock("", ""))
            case Kind.TEXT:
                return BlockStart(self.index, TextBlock(""))
            case Kind.TOOL_USE:
                return BlockStart(self.index, ToolUseBlock(self.call_id, self.name, NOTHING))

    def delta(self) -> BlockDelta:
        """One that says nothing."""
        match self.kind:
            case Kind.THINKING:
                return BlockDelta(self.index, ThinkingDelta(""))
            case Kind.TEXT:
                return BlockDelta(self.index, TextDelta(""))
            case Kind.TOOL_USE:
                return BlockDelta(self.index, InputDelta(""))

    def end(self) -> Sequence[Event]:
        """All was said, or as much as there will be."""
        stop = BlockStop(self.index)
        if self.kind is not Kind.THINKING:
            return [stop]
        return [BlockDelta(self.index, SignatureDelta(self._signature)), stop]

    def block(self) -> Block:
        """With all that was said. A call whose input is no object has none."""
        text = "".join(self.said)
        match self.kind:
            case Kind.THINKING:
                return ThinkingBlock("" if self.hidden else text, self._signature)
            case Kind.TEXT:
                return TextBlock(text)
            case Kind.TOOL_USE:
                whole = Raw(text.encode()) if _is_object(text) else NOTHING
                return ToolUseBlock(self.call_id, self.name, whole)

    @property
    def _signature(self) -> str:
        return signature_of("".join(self.said), hidden=self.hidden)


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except UNREADABLE:
        return False
