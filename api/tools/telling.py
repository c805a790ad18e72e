"""Calls as OpenAI's chats tell of them: whole, or as deltas of a stream."""

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from api.tools.functions import CUSTOM
from api.tools.inputs import InputReader
from api.tools.parsing.output import (
    CallArguments,
    CallEnded,
    CallStarted,
    ContentText,
    ParserEvent,
)
from api.tools.parsing.reader import CallReader
from engine.request import FinishReason

FUNCTION: Literal["function"] = "function"
TOOL_CALLS = "tool_calls"


class CalledFunction(msgspec.Struct, frozen=True):
    """What is called, and with what: JSON, as it stands in the answer."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True):
    """A call in a message."""

    id: str
    function: CalledFunction
    type: str = FUNCTION


class CalledCustom(msgspec.Struct, frozen=True):
    """Which custom tool is called, and with what: a text."""

    name: str
    input: str


class CustomCall(msgspec.Struct, frozen=True):
    """A call of a custom tool in a message."""

    id: str
    custom: CalledCustom
    type: str = CUSTOM


AnyCall = ToolCall | CustomCall


class FunctionDelta(msgspec.Struct, frozen=True):
    """More of a call's function; the name comes with the first."""

    arguments: str
    name: str | UnsetType = UNSET


class CustomDelta(msgspec.Struct, frozen=True):
    """The same of a custom tool's input."""

    input: str
    name: str | UnsetType = UNSET


class CallDelta(msgspec.Struct, frozen=True):
    """More of a call, of a function or a custom tool; its id and type come with the first."""

    index: int
    function: FunctionDelta | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    custom: CustomDelta | UnsetType = UNSET

    @property
    def name(self) -> str | UnsetType:
        """Of the function or the tool, with the first."""
        return self._custom.name if self.function is UNSET else self.function.name

    @property
    def more(self) -> str:
        """What it adds to the arguments, or to the input."""
        return self._custom.input if self.function is UNSET else self.function.arguments

    @property
    def _custom(self) -> CustomDelta:
        assert self.custom is not UNSET
        return self.custom


@dataclass(slots=True)
class Teller:
    """Of one choice; `only_first`: calls after the first are left out.

    `named`: the client chose the function, so that its call is no reason to stop. Of what are
    `customs` the one text is told that their arguments are about. Calls keep
    the names that the model gave them, if they are different. Of others it is a `new_id`, for
    a call of this function with this number in the conversation; `past` are the names of its
    calls so far.
    """

    reader: CallReader
    new_id: Callable[[str, int], str]
    past: Sequence[str] = ()
    only_first: bool = False
    named: bool = False
    customs: Container[str] = ()
    _calls: int = 0
    _ids: dict[str, bool] = field(default_factory=dict)  # of calls, and whether each is whole
    _input: InputReader | None = None  # of the last call that is told
    _open: bool = False  # a call has begun and is not whole
    _broken: bool = False  # nor will it ever be

    def read(self, text: str, finish: FinishReason | None) -> Sequence[str | CallDelta]:
        """What is new: content, and deltas of calls."""
        said = list(self.reader.read(text))
        if finish is not None:
            said += self.reader.finish(cut=finish is FinishReason.LENGTH)
        return list(self._told(said))

    def finish_reason(self, finish: FinishReason | None) -> str | None:
        """Calls that are whole are a reason of their own; an answer cut short stays one."""
        calls = self.whole and not self.named
        return TOOL_CALLS if finish is FinishReason.STOP and calls else finish

    @property
    def whole(self) -> bool:
        """Whether there were calls, and all of them are whole."""
        return self._calls > 0 and not (self._open or self._broken)

    def is_whole(self, call: str) -> bool:
        """Whether the call of this id is; once something else was told, or the end."""
        return self._ids.get(call, False)

    def _told(self, said: Sequence[ParserEvent]) -> Iterator[str | CallDelta]:
        for one in said:
            match one:
                case ContentText(text):
                    self._break()
                    yield text
                case CallStarted(name, own):
                    self._break()
                    self._calls += 1
                    if self._tells:
                        self._open = True
                        yield self._begun(name, self._id(name, own))
                case CallArguments(text) if self._tells:
                    yield from self._argued(text)
                case CallEnded() if self._tells:
                    self._open = False
                    self._ids[next(reversed(self._ids))] = True
                    if self._input and (late := self._input.late):
                        yield self._more(late)

    def _begun(self, name: str, new: str) -> CallDelta:
        number = self._calls - 1
        self._input = InputReader() if name in self.customs else None
        if self._input is None:
            return CallDelta(number, FunctionDelta("", name), new, FUNCTION)
        return CallDelta(number, UNSET, new, CUSTOM, CustomDelta("", name))

    def _argued(self, text: str) -> Iterator[CallDelta]:
        if self._input is None:
            yield CallDelta(self._calls - 1, FunctionDelta(text))
        elif said := self._input.read(text):
            yield self._more(said)

    def _more(self, text: str) -> CallDelta:
        return CallDelta(self._calls - 1, custom=CustomDelta(text))

    def _id(self, name: str, own: str | None) -> str:
        number, one = len(self.past) + self._calls - 1, own
        while one is None or one in self._ids or (one != own and one in self.past):
            one = self.new_id(name, number)
            number += 1
        self._ids[one] = False
        return one

    def _break(self) -> None:
        self._broken = self._broken or self._open

    @property
    def _tells(self) -> bool:
        return self._calls == 1 or not self.only_first


def whole_message(
    said: Sequence[str | CallDelta],
) -> tuple[str, Sequence[AnyCall]]:
    """The content and the calls that deltas add up to."""
    content = "".join(one for one in said if isinstance(one, str))
    of_calls = dict[int, list[CallDelta]]()
    for one in said:
        if isinstance(one, CallDelta):
            of_calls.setdefault(one.index, []).append(one)
    return content, list(map(_call, of_calls.values()))


def _call(deltas: Sequence[CallDelta]) -> AnyCall:
    first, text = deltas[0], "".join(one.more for one in deltas)
    assert first.id is not UNSET
    assert first.name is not UNSET
    if first.custom is not UNSET:
        return CustomCall(first.id, CalledCustom(first.name, text))
    return ToolCall(first.id, CalledFunction(first.name, text))
