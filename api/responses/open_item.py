"""One item of a response's output while text is still added to it, and its stream events.

reasoning           added, part added, deltas, text done, part done, done
message             the same
function_call       added, deltas, arguments done, done
custom_tool_call    added, deltas, input done, done
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import msgspec
from msgspec import UNSET, Raw, UnsetType

from api.responses.events import DeltaEvent, DoneEvent, Event, ItemEvent, PartEvent
from api.responses.shapes import (
    CallItem,
    CustomCallItem,
    Item,
    MessageItem,
    OutputText,
    Part,
    ReasoningItem,
    ReasoningText,
    Status,
)
from api.wire import UNREADABLE

NextNumber = Callable[[], int]
FIRST = 0  # the index of an item's only part


class ItemKind(Enum):
    """The type of an item: the prefix of its id, and the prefix of its text's events."""

    REASONING = "rs_", "response.reasoning_text"
    MESSAGE = "msg_", "response.output_text"
    CALL = "fc_", "response.function_call_arguments"
    CUSTOM = "ctc_", "response.custom_tool_call_input"

    @property
    def id_prefix(self) -> str:
        """The prefix of the item's id."""
        return self.value[0]

    @property
    def is_call(self) -> bool:
        """Whether it is a call, which has no parts."""
        return self in (ItemKind.CALL, ItemKind.CUSTOM)

    @property
    def event_prefix(self) -> str:
        """What the types of its text's delta and done events begin with."""
        return self.value[1]


@dataclass(slots=True)
class OpenItem:
    """An item of which more text may come; `call_id`, `name` and `namespace` are of calls only.

    `logprobs` are tokens already encoded: the closing events repeat all of them four times.
    """

    kind: ItemKind
    item_id: str
    index: int
    call_id: str = ""
    name: str = ""
    namespace: str | UnsetType = UNSET
    texts: list[str] = field(default_factory=list)
    logprobs: list[Raw] = field(default_factory=list)

    def start_events(self, next_number: NextNumber) -> Sequence[Event]:
        """The events that open the item, still without text."""
        added = ItemEvent(
            "response.output_item.added", self.index, self._empty_item(), next_number()
        )
        if self.kind.is_call:
            return [added]
        part = self._part("", ())
        return [added, self._part_event("response.content_part.added", part, next_number())]

    def empty_delta(self, tokens: Sequence[Raw] = ()) -> DeltaEvent:
        """A delta event without text."""
        return DeltaEvent(
            type=f"{self.kind.event_prefix}.delta",
            item_id=self.item_id,
            output_index=self.index,
            content_index=UNSET if self.kind.is_call else FIRST,
            logprobs=tokens if self.kind is ItemKind.MESSAGE else UNSET,
        )

    def done_events(self, status: Status, next_number: NextNumber) -> Sequence[Event]:
        """The events that close the item."""
        events: list[Event] = [self._done_event(next_number())]
        if not self.kind.is_call:
            part = self._part("".join(self.texts), self.logprobs)
            events.append(self._part_event("response.content_part.done", part, next_number()))
        item = self.item(status)
        return [
            *events,
            ItemEvent("response.output_item.done", self.index, item, next_number()),
        ]

    def item(self, status: Status) -> Item:
        """The item with all its text. A function call is complete if its arguments are JSON."""
        text = "".join(self.texts)
        match self.kind:
            case ItemKind.REASONING:
                return ReasoningItem(self.item_id, status, [ReasoningText(text)])
            case ItemKind.MESSAGE:
                return MessageItem(self.item_id, status, [OutputText(text, (), self.logprobs)])
            case ItemKind.CALL:
                whole: Status = "completed" if _is_json(text) else "incomplete"
                return self._call_item(whole, text)
            case ItemKind.CUSTOM:
                return self._call_item(status, text)

    def _empty_item(self) -> Item:
        match self.kind:
            case ItemKind.REASONING:
                return ReasoningItem(self.item_id, "in_progress", ())
            case ItemKind.MESSAGE:
                return MessageItem(self.item_id, "in_progress", ())
            case ItemKind.CALL | ItemKind.CUSTOM:
                return self._call_item("in_progress", "")

    def _call_item(self, status: Status, said: str) -> CallItem | CustomCallItem:
        kind = CallItem if self.kind is ItemKind.CALL else CustomCallItem
        return kind(self.item_id, status, self.call_id, self.name, said, self.namespace)

    def _part(self, text: str, tokens: Sequence[Raw]) -> Part:
        if self.kind is ItemKind.REASONING:
            return ReasoningText(text)
        return OutputText(text, (), tokens)

    def _part_event(self, kind: str, part: Part, number: int) -> PartEvent:
        return PartEvent(kind, self.item_id, self.index, FIRST, part, number)

    def _done_event(self, number: int) -> DoneEvent:
        text, kind = "".join(self.texts), self.kind
        return DoneEvent(
            type=f"{self.kind.event_prefix}.done",
            item_id=self.item_id,
            output_index=self.index,
            content_index=UNSET if kind.is_call else FIRST,
            logprobs=self.logprobs if self.kind is ItemKind.MESSAGE else UNSET,
            text=UNSET if kind.is_call else text,
            name=self.name if kind is ItemKind.CALL else UNSET,
            arguments=text if kind is ItemKind.CALL else UNSET,
            input=text if kind is ItemKind.CUSTOM else UNSET,
            sequence_number=number,
        )


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except UNREADABLE:
        return False
    return True
