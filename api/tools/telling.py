"""Calls as OpenAI's chats tell of them: whole, or as deltas of a stream."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from api.tools.parsing.reader import CallReader
from api.tools.parsing.tape import Arguments, Begun, Content, Ended, Said
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


class FunctionDelta(msgspec.Struct, frozen=True):
    """More of a call's function; the name comes with the first."""

    arguments: str
    name: str | UnsetType = UNSET


class CallDelta(msgspec.Struct, frozen=True):
    """More of a call; its id and type come with the first."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


@dataclass(slots=True)
class Teller:
    """Of one choice; `only_first`: calls after the first are left out.

    `named`: the client chose the function, so that its call is no reason to stop. Calls keep
    the names that the model gave them, if they are different. Of others it is a `new_id`, for
    a call of this function with this number in the conversation; `past` are the names of its
    calls so far.
    """

    reader: CallReader
    new_id: Callable[[str, int], str]
    past: Sequence[str] = ()
    only_first: bool = False
    named: bool = False
    _calls: int = 0
    _ids: set[str] = field(default_factory=set)
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

    def _told(self, said: Sequence[Said]) -> Iterator[str | CallDelta]:
        for one in said:
            match one:
                case Content(text):
                    self._break()
                    yield text
                case Begun(name, own):
                    self._break()
                    self._calls += 1
                    if self._tells:
                        self._open = True
                        function, new = FunctionDelta("", name), self._id(name, own)
                        yield CallDelta(self._calls - 1, function, new, FUNCTION)
                case Arguments(text) if self._tells:
                    yield CallDelta(self._calls - 1, FunctionDelta(text))
                case Ended():
                    self._open = False

    def _id(self, name: str, own: str | None) -> str:
        number, one = len(self.past) + self._calls - 1, own
        while one is None or one in self._ids or (one != own and one in self.past):
            one = self.new_id(name, number)
            number += 1
        self._ids.add(one)
        return one

    def _break(self) -> None:
        self._broken = self._broken or self._open

    @property
    def _tells(self) -> bool:
        return self._calls == 1 or not self.only_first


def whole_message(
    said: Sequence[str | CallDelta],
) -> tuple[str, Sequence[ToolCall]]:
    """The content and the calls that deltas add up to."""
    content = "".join(one for one in said if isinstance(one, str))
    of_calls = dict[int, list[CallDelta]]()
    for one in said:
        if isinstance(one, CallDelta):
            of_calls.setdefault(one.index, []).append(one)
    return content, list(map(_call, of_calls.values()))


def _call(deltas: Sequence[CallDelta]) -> ToolCall:
    first = deltas[0]
    assert first.id is not UNSET
    assert first.function.name is not UNSET
    texts = [one.function.arguments for one in deltas]
    return ToolCall(first.id, CalledFunction(first.function.name, "".join(texts)))
