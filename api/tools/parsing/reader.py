"""Runs a tool call parser over the text of one choice, as it comes."""

from collections.abc import Container, Sequence

from api.tools.parsing.output import Parser, ParserEvent, ParserOutput
from api.tools.tool_choice import OfferedFunctions


class CallReader:
    """Tells calls from content in one choice's answer; `allowed` as in ParserOutput."""

    def __init__(
        self, parser: Parser, offered: OfferedFunctions, allowed: Container[str] | None = None
    ) -> None:
        self._out = ParserOutput(allowed)
        self._steps = parser(self._out, offered)
        next(self._steps)

    def read(self, text: str) -> Sequence[ParserEvent]:
        """The events that this text makes certain."""
        place = 0
        while (place := self._out.skip_content(text, place)) < len(text):
            self._out.hold(text[place])
            self._steps.send(text[place])
            place += 1
        return self._out.take_events()

    def finish(self, *, cut: bool = False) -> Sequence[ParserEvent]:
        """No more text comes: the events of what was still undecided. An answer that the token
        limit `cut` in a call drops it; the call stays as far as it came.
        """
        self._steps.close()
        self._out.finish(cut=cut)
        return self._out.take_events()
