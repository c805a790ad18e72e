"""The output of a tool call parser: events, and text that is still undecided.

A parser is a generator. CallReader sends it the answer's characters one by one, and it writes
events into a ParserOutput; so its events do not depend on how a stream cut the answer into
pieces. It never returns by itself.
"""

import re
from collections.abc import Callable, Container, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from api.tools.tool_choice import OfferedFunctions

SPACE = " \t\n\r"


class NotACall(Exception):
    """Text that looked like a call is not one; the held text is content."""


@dataclass(frozen=True, slots=True)
class ContentText:
    """More of the answer's content, and where in the answer it begins."""

    text: str
    start: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A call of function `name` begins; `id` is the call's id, if the model wrote one."""

    name: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments of the current call, as JSON."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The current call is whole, and its arguments are a JSON object."""


ParserEvent = ContentText | CallStarted | CallArguments | CallEnded


@dataclass(slots=True)
class ParserOutput:
    """Events of a parser, and the text that it holds: read, but not yet known to be content or
    part of a call.

    White space around calls is dropped. While nothing but white space is held, text that
    matches `content_pattern` and begins without white space is content. `calls` counts calls
    that began. `in_call`: the held text can only be part of a call, unless the model made a
    mistake. `allowed`: calls of other functions are content; `refused` counts those. None
    allows all.
    """

    allowed: Container[str] | None = None
    content_pattern: re.Pattern[str] | None = None
    calls: int = 0
    refused: int = 0
    in_call: bool = False
    _held: list[str] = field(default_factory=list)
    _events: list[ParserEvent] = field(default_factory=list)
    _after_call: bool = False
    _num_read: int = 0

    @property
    def held(self) -> str:
        """The undecided text."""
        if len(self._held) > 1:
            self._held = ["".join(self._held)]
        return self._held[0] if self._held else ""

    def hold(self, letter: str) -> None:
        """Add to the undecided text."""
        self._held.append(letter)
        self._num_read += len(letter)

    def emit_content(self, *, but: int = 0) -> None:
        """The undecided text is content, except its last `but` characters."""
        held = self.held
        text, self._held = held[: len(held) - but], [held[len(held) - but :]]
        if text:
            self._events.append(ContentText(text, self._num_read - len(held)))
            self._after_call = False

    def skip_content(self, text: str, place: int) -> int:
        """Emit at once all text that is certainly content from `place` on; returns its end."""
        undecided = text[place : place + 1] in SPACE or self.held.strip(SPACE)
        if self.content_pattern is None or undecided:
            return place
        if (found := self.content_pattern.match(text, place)) is None:
            return place
        self.hold(found[0])
        self.emit_content()
        return found.end()

    def start_call(self, name: str, id: str | None = None) -> None:  # noqa: A002  as clients have it
        """The undecided text is the beginning of a call. Raises NotACall for a function that
        is not allowed.
        """
        if self.allowed is not None and name not in self.allowed:
            self.refused += 1
            raise NotACall
        self._emit(CallStarted(name, id))
        self.calls += 1
        self.in_call = True

    def add_arguments(self, text: str, *, but: int = 0) -> None:
        """Emit more arguments of the current call, as JSON. They stand for the undecided text,
        except its last `but` characters.
        """
        kept = self.held[-but:] if but else ""
        self._emit(CallArguments(text))
        if kept:
            self._held = [kept]

    def end_call(self) -> None:
        """The current call is whole."""
        self._emit(CallEnded())
        self._after_call = True

    def drop_held(self) -> None:
        """The undecided text is part of a call's syntax; drop it."""
        self._held.clear()

    def finish(self, *, cut: bool) -> None:
        """No more text comes; `cut`: the token limit ended the answer."""
        if not (cut and self.in_call) and (self.held.strip(SPACE) or not self._after_call):
            self.emit_content()
        self.drop_held()

    def take_events(self) -> Sequence[ParserEvent]:
        """The events since the last call of this method."""
        events, self._events = self._events, []
        return list(_joined(events)) if len(events) > 1 else events

    def _emit(self, event: ParserEvent) -> None:
        self._held.clear()
        self._events.append(event)


Steps = Generator[None, str, None]
TextSteps = Generator[None, str, str]
"""A part of a parser; returns the last character it read, or a text."""
Parser = Callable[[ParserOutput, OfferedFunctions], Steps]


def partial_marker(text: str, mark: str) -> str:
    """The longest end of a text that is a proper beginning of the mark."""
    if mark[:1] not in text:
        return ""
    longest = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((mark[:size] for size in longest if text.endswith(mark[:size])), "")


def _joined(events: Iterable[ParserEvent]) -> Iterable[ParserEvent]:
    """Join neighbouring content, and neighbouring arguments."""
    for kind, run in groupby(events, type):
        if kind is ContentText:
            parts = [one for one in run if isinstance(one, ContentText)]
            yield ContentText("".join(one.text for one in parts), parts[0].start)
        elif kind is CallArguments:
            yield CallArguments(
                "".join(one.text for one in run if isinstance(one, CallArguments))
            )
        else:
            yield from run
