"""How the calls of one request's answers are read: by what was asked for, and by the model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from api.tools.dialects.known import ToolCallParser, find_dialect, long_id
from api.tools.forced import named, required
from api.tools.parsing.reader import CallReader
from api.tools.parsing.tape import Parser
from api.tools.telling import Teller
from api.tools.wishes import ToolUse
from api.wire import WireError

CANNOT_TELL = (
    'tool_choice "auto" needs to know how the model writes calls, which its chat template does '
    'not tell: start the server with --tool-call-parser, or choose "required", a function, or '
    '"none"'
)


@dataclass(frozen=True, slots=True)
class Calling:
    """Shared by all choices of a request, before which the conversation had calls of the names
    in `past`. `markers` are to be text, special tokens or not.
    """

    use: ToolUse
    parser: Parser
    new_id: Callable[[str, int], str]
    past: Sequence[str]
    markers: tuple[str, ...] = ()

    def teller(self) -> Teller:
        """For one choice."""
        return Teller(
            CallReader(self.parser, self.use.offered),
            self.new_id,
            self.past,
            only_first=not self.use.parallel,
            named=self.use.named is not None,
        )


def calling_of(
    use: ToolUse,
    told: ToolCallParser,
    template: object,
    messages: Sequence[Mapping[str, object]],
) -> Calling:
    """Where calls may come behind these messages; raises WireError."""
    dialect = find_dialect(told, template)
    past = [name for one in messages for name in _calls_in(one)]
    if use.mode == "required":
        parser = required if use.named is None else named(use.named)
        return Calling(use, parser, dialect.new_id if dialect else long_id, past)
    if dialect is None:
        raise WireError(CANNOT_TELL, "tools")
    return Calling(use, dialect.parser, dialect.new_id, past, dialect.markers)


def _calls_in(message: Mapping[str, object]) -> Sequence[str]:
    """Their names, as far as they have any."""
    calls = message.get("tool_calls")
    named = calls if isinstance(calls, list) else []
    return [str(one.get("id")) if isinstance(one, Mapping) else "" for one in named]
