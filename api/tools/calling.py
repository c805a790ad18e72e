"""How the calls of one request's answers are read: by what was asked for, and by the model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from api.tools.beside import Formed, calls_or, calls_or_content
from api.tools.dialects.dialect import Dialect, long_id
from api.tools.dialects.known import ToolCallParser, find_dialect, text_of
from api.tools.forced import named, required
from api.tools.parsing.output import Parser
from api.tools.parsing.reader import CallReader
from api.tools.strict import Aloud, strict_of, text_with_calls
from api.tools.telling import Teller
from api.tools.wishes import ToolUse
from api.wire import WireError
from engine.request import Grammar

CANNOT_TELL = (
    'tool_choice "auto" needs to know how the model writes calls, which its chat template does '
    'not tell: start the server with --tool-call-parser, or choose "required", a function, or '
    '"none"'
)


@dataclass(frozen=True, slots=True)
class Calling:
    """Shared by all choices of a request, before which the conversation had calls of the names
    in `past`. `markers` are to be text, special tokens or not. `dialect` and `template` are the
    model's, where it calls in its own words.
    """

    use: ToolUse
    parser: Parser
    new_id: Callable[[str, int], str]
    past: Sequence[str]
    markers: tuple[str, ...] = ()
    dialect: Dialect | None = None
    template: str = ""

    def teller(self) -> Teller:
        """For one choice."""
        return Teller(
            CallReader(self.parser, self.use.offered, self.use.allowed),
            self.new_id,
            self.past,
            only_first=not self.use.parallel,
            named=self.use.named is not None,
            customs=self.use.customs,
        )

    def beside(self, formed: Formed) -> Grammar | None:
        """See `calls_or`."""
        assert self.dialect is not None
        return calls_or(formed, self.use, self.dialect, self.template)

    def text_with_calls(self, aloud: Aloud) -> Grammar | None:
        """See the function of that name."""
        assert self.dialect is not None
        return text_with_calls(self.use, self.dialect, self.template, aloud)


def calling_of(
    use: ToolUse,
    told: ToolCallParser,
    template: object,
    messages: Sequence[Mapping[str, object]],
    *,
    formed: bool = False,
) -> Calling:
    """Where calls may come behind these messages, in an answer that has a form if it has none
    of them, or that may be anything. Raises WireError.
    """
    dialect = find_dialect(told, template)
    past = [name for one in messages for name in _calls_in(one)]
    if use.mode == "required":
        parser = required if use.named is None else named(use.named)
        return Calling(use, parser, dialect.new_id if dialect else long_id, past)
    if dialect is None:
        raise WireError(CANNOT_TELL, "tools")
    parser = calls_or_content(dialect) if formed and dialect.write else dialect.parser
    if dialect.firm and strict_of(use) and not formed:
        parser = dialect.firm
    words = dialect.new_id, past, dialect.markers, dialect, text_of(template)
    return Calling(use, parser, *words)


def _calls_in(message: Mapping[str, object]) -> Sequence[str]:
    """Their names, as far as they have any."""
    calls = message.get("tool_calls")
    named = calls if isinstance(calls, list) else []
    return [str(one.get("id")) if isinstance(one, Mapping) else "" for one in named]
