"""Parses sections of calls: each section has markers, and so has each of its calls."""

from collections.abc import Callable
from dataclasses import dataclass

from api.tools.parsing.call_objects import NO_ARGUMENTS, json_arguments
from api.tools.parsing.output import NotACall, Parser, ParserOutput, Steps
from api.tools.parsing.steps import (
    attempt_call,
    calls_after_markers,
    content_until,
    literal,
    skip_space,
)
from api.tools.tool_choice import OfferedFunctions


@dataclass(frozen=True, slots=True)
class SectionForm:
    """The syntax of a section: its opening and closing markers, the `mark` before each call,
    and `call`, which parses what follows the mark. `wrappers` are markers around text, which
    are not content.
    """

    opens: tuple[str, ...]
    closes: tuple[str, ...]
    mark: str
    call: Callable[[ParserOutput], Steps]
    wrappers: tuple[str, ...] = ()

    def parser(self) -> Parser:
        """Parse an answer: content may come around sections, and in them after a broken
        call.
        """

        def parse(out: ParserOutput, offered: OfferedFunctions) -> Steps:
            del offered
            if not self.wrappers:
                return calls_after_markers(out, self._section, *self.opens)
            return self._wrapped(out)

        return parse

    def _wrapped(self, out: ParserOutput) -> Steps:
        """Parse an answer with wrappers."""
        while True:
            found = yield from content_until(out, *self.opens, *self.wrappers)
            if found in self.opens:
                yield from attempt_call(out, self._section(out))
            else:
                out.drop_held()

    def _section(self, out: ParserOutput) -> Steps:
        """Parse a section, which has to begin with a call. All its calls are found, also those
        after a broken or refused one.
        """
        yield from literal((yield from skip_space()), self.mark)
        before, refused = out.calls, out.refused
        yield from attempt_call(out, self.call(out))
        if (out.calls, out.refused) == (before, refused):
            raise NotACall
        marks = self.mark, *self.closes, *self.opens
        while (found := (yield from content_until(out, *marks))) == self.mark:
            yield from attempt_call(out, self.call(out))
        if found in self.closes and out.calls > before:
            out.drop_held()


def read_json_call(
    out: ParserOutput, name: str, *ends: str, own_id: str | None = None
) -> Steps:
    """Parse the arguments of a call of `name`, and the markers after them, which may be
    missing after an object; there may be no arguments. Raises NotACall if anything else comes.
    """
    letter = yield from skip_space()
    if empty := letter != "{":
        yield from literal(letter, ends[0])
    out.start_call(name, own_id)
    if empty:
        out.add_arguments(NO_ARGUMENTS)
    else:
        yield from json_arguments(out, letter)
    out.end_call()
    for end in ends[empty:]:
        yield from literal((yield from skip_space()), end)
        out.drop_held()
