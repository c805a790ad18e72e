"""Tool calls in the JSON of OpenAI's chats: whole, or as deltas of a stream."""

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET, UnsetType

from api.tools.functions import CUSTOM, FUNCTION
from api.tools.inputs import CustomInputReader
from api.tools.parsing.output import (
    CallArguments,
    CallEnded,
    CallStarted,
    ContentText,
    ParserEvent,
)
from api.tools.parsing.reader import CallReader
from engine.request import FinishReason

TOOL_CALLS = "tool_calls"


class CalledFunction(msgspec.Struct, frozen=True):
    """The function that is called, and its arguments: JSON, as written in the answer."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True):
    """A call of a function in a message."""

    id: str
    function: CalledFunction
    type: str = FUNCTION


class CalledCustom(msgspec.Struct, frozen=True):
    """The custom tool that is called, and its input: a text."""

    name: str
    input: str


class CustomCall(msgspec.Struct, frozen=True):
    """A call of a custom tool in a message."""

    id: str
    custom: CalledCustom
    type: str = CUSTOM


AnyCall = ToolCall | CustomCall


class FunctionDelta(msgspec.Struct, frozen=True):
    """More arguments of a function's call; the name comes with the first delta."""

    arguments: str
    name: str | UnsetType = UNSET


class CustomDelta(msgspec.Struct, frozen=True):
    """More input of a custom tool's call; the name comes with the first delta."""

    input: str
    name: str | UnsetType = UNSET


class CallDelta(msgspec.Struct, frozen=True):
    """More of a call, of a function or a custom tool; id and type come with the first delta."""

    index: int
    function: FunctionDelta | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    custom: CustomDelta | UnsetType = UNSET

    @property
    def name(self) -> str | UnsetType:
        """The name of the function or the custom tool, in the first delta of a call."""
        return self._custom.name if self.function is UNSET else self.function.name

    @property
    def added(self) -> str:
        """The text that this delta adds to the arguments or the input."""
        return self._custom.input if self.function is UNSET else self.function.arguments

    @property
    def _custom(self) -> CustomDelta:
        assert self.custom is not UNSET
        return self.custom


@dataclass(slots=True)
class ToolCallStream:
    """Turns the text of one choice into content and deltas of tool calls.

    `only_first`: calls after the first are left out. `function_chosen`: `tool_choice` named the
    function, so a call does not change the finish reason. Calls of `custom_tools` carry their
    input text, not JSON. A call keeps the id that the model wrote if it is unique, or gets one
    from `new_id`, which takes the function's name and the call's number in the conversation;
    `past_ids` are the ids of the conversation's earlier calls.
    """

    reader: CallReader
    new_id: Callable[[str, int], str]
    past_ids: Sequence[str] = ()
    only_first: bool = False
    function_chosen: bool = False
    custom_tools: Container[str] = ()
    content_starts: list[int] = field(default_factory=list)
    """Where in the answer each text begins that the last `read` returned."""
    _calls: int = 0
    _ids: dict[str, bool] = field(default_factory=dict)  # whether each call is whole, by its id
    _input: CustomInputReader | None = None  # of the last call, if of a custom tool
    _open: bool = False  # a call has begun and is not complete yet
    _broken: bool = False  # a call ended before it was complete

    def read(self, text: str, finish: FinishReason | None) -> Sequence[str | CallDelta]:
        """Read more text of the choice; returns new content and deltas of calls."""
        events = list(self.reader.read(text))
        if finish is not None:
            events += self.reader.finish(cut=finish is FinishReason.LENGTH)
        self.content_starts = [one.start for one in events if isinstance(one, ContentText)]
        return list(self._deltas_of(events))

    def finish_reason(self, finish: FinishReason | None) -> str | None:
        """`tool_calls` for an answer that stopped with whole calls, or else the same reason."""
        calls = self.whole and not self.function_chosen
        return TOOL_CALLS if finish is FinishReason.STOP and calls else finish

    @property
    def whole(self) -> bool:
        """Whether there were calls, and all of them are complete."""
        return self._calls > 0 and not (self._open or self._broken)

    def is_whole(self, call: str) -> bool:
        """Whether the call of this id is complete; asked after its end."""
        return self._ids.get(call, False)

    def _deltas_of(self, events: Sequence[ParserEvent]) -> Iterator[str | CallDelta]:
        for event in events:
            match event:
                case ContentText(text):
                    self._mark_broken()
                    yield text
                case CallStarted(name, own):
                    self._mark_broken()
                    self._calls += 1
                    if self._is_shown:
                        self._open = True
                        yield self._first_delta(name, self._call_id(name, own))
                case CallArguments(text) if self._is_shown:
                    yield from self._argument_deltas(text)
                case CallEnded() if self._is_shown:
                    self._open = False
                    self._ids[next(reversed(self._ids))] = True
                    if self._input and (late := self._input.fallback):
                        yield self._custom_delta(late)

    def _first_delta(self, name: str, new: str) -> CallDelta:
        number = self._calls - 1
        self._input = CustomInputReader() if name in self.custom_tools else None
        if self._input is None:
            return CallDelta(number, FunctionDelta("", name), new, FUNCTION)
        return CallDelta(number, UNSET, new, CUSTOM, CustomDelta("", name))

    def _argument_deltas(self, text: str) -> Iterator[CallDelta]:
        if self._input is None:
            yield CallDelta(self._calls - 1, FunctionDelta(text))
        elif said := self._input.read(text):
            yield self._custom_delta(said)

    def _custom_delta(self, text: str) -> CallDelta:
        return CallDelta(self._calls - 1, custom=CustomDelta(text))

    def _call_id(self, name: str, own: str | None) -> str:
        number, one = len(self.past_ids) + self._calls - 1, own
        while one is None or one in self._ids or (one != own and one in self.past_ids):
            one = self.new_id(name, number)
            number += 1
        self._ids[one] = False
        return one

    def _mark_broken(self) -> None:
        self._broken = self._broken or self._open

    @property
    def _is_shown(self) -> bool:
        return self._calls == 1 or not self.only_first


def join_deltas(
    deltas: Sequence[str | CallDelta],
) -> tuple[str, Sequence[AnyCall]]:
    """The content and the calls that the deltas add up to."""
    content = "".join(one for one in deltas if isinstance(one, str))
    of_calls = dict[int, list[CallDelta]]()
    for one in deltas:
        if isinstance(one, CallDelta):
            of_calls.setdefault(one.index, []).append(one)
    return content, list(map(_call, of_calls.values()))


def _call(deltas: Sequence[CallDelta]) -> AnyCall:
    first, text = deltas[0], "".join(one.added for one in deltas)
    assert first.id is not UNSET
    assert first.name is not UNSET
    if first.custom is not UNSET:
        return CustomCall(first.id, CalledCustom(first.name, text))
    return ToolCall(first.id, CalledFunction(first.name, text))
