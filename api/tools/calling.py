"""How the calls of one request's answers are read: by what was asked for, and by the model."""

from collections.abc import Callable
from dataclasses import dataclass

from api.tools.dialects import Dialect, ToolCallParser, find_dialect, long_id
from api.tools.forced import named, required
from api.tools.reader import CallReader
from api.tools.tape import Parser
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
    """Shared by all choices of a request. `markers` are to be text, special tokens or not."""

    use: ToolUse
    parser: Parser
    new_id: Callable[[], str]
    markers: tuple[str, ...] = ()

    def teller(self) -> Teller:
        """For one choice."""
        return Teller(
            CallReader(self.parser, self.use.offered),
            self.new_id,
            only_first=not self.use.parallel,
            named=self.use.named is not None,
        )


def calling_of(use: ToolUse, told: ToolCallParser, template: object) -> Calling:
    """Where calls may come; raises WireError."""
    dialect = find_dialect(told, template)
    if use.mode == "required":
        parser = required if use.named is None else named(use.named)
        return Calling(use, parser, dialect.new_id if dialect else long_id)
    if dialect is None:
        raise WireError(CANNOT_TELL, "tools")
    return _auto(use, dialect)


def _auto(use: ToolUse, dialect: Dialect) -> Calling:
    return Calling(use, dialect.parser, dialect.new_id, dialect.markers)
