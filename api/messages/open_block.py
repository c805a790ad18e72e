"""One block of a message's content while text is still added to it, and its stream events.

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
from api.messages.shapes import EMPTY_INPUT, Block, TextBlock, ThinkingBlock, ToolUseBlock
from api.messages.signatures import signature_of
from api.wire import UNREADABLE


class BlockKind(Enum):
    """The type of a block."""

    THINKING = auto()
    TEXT = auto()
    TOOL_USE = auto()


@dataclass(slots=True)
class OpenBlock:
    """A block of which more text may come; `call_id` and `name` are of tool calls. `hidden`:
    its text is sent in its signature alone.
    """

    kind: BlockKind
    index: int
    hidden: bool = False
    call_id: str = ""
    name: str = ""
    texts: list[str] = field(default_factory=list)

    def start_event(self) -> Event:
        """The event that opens the block, still without text."""
        match self.kind:
            case BlockKind.THINKING:
                return BlockStart(self.index, ThinkingBlock("", ""))
            case BlockKind.TEXT:
                return BlockStart(self.index, TextBlock(""))
            case BlockKind.TOOL_USE:
                return BlockStart(
                    self.index, ToolUseBlock(self.call_id, self.name, EMPTY_INPUT)
                )

    def empty_delta(self) -> BlockDelta:
        """A delta event without text."""
        match self.kind:
            case BlockKind.THINKING:
                return BlockDelta(self.index, ThinkingDelta(""))
            case BlockKind.TEXT:
                return BlockDelta(self.index, TextDelta(""))
            case BlockKind.TOOL_USE:
                return BlockDelta(self.index, InputDelta(""))

    def stop_events(self) -> Sequence[Event]:
        """The events that close the block."""
        stop = BlockStop(self.index)
        if self.kind is not BlockKind.THINKING:
            return [stop]
        return [BlockDelta(self.index, SignatureDelta(self._signature)), stop]

    def block(self) -> Block:
        """The block with all its text. A call's input that is no JSON object becomes `{}`."""
        text = "".join(self.texts)
        match self.kind:
            case BlockKind.THINKING:
                return ThinkingBlock("" if self.hidden else text, self._signature)
            case BlockKind.TEXT:
                return TextBlock(text)
            case BlockKind.TOOL_USE:
                whole = Raw(text.encode()) if _is_object(text) else EMPTY_INPUT
                return ToolUseBlock(self.call_id, self.name, whole)

    @property
    def _signature(self) -> str:
        return signature_of("".join(self.texts), hidden=self.hidden)


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except UNREADABLE:
        return False
