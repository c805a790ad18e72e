"""How one request's tool calls are parsed: chosen by its `tools` and by the model's dialect."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from api.tools.deltas import ToolCallStream
from api.tools.dialects.dialect import Dialect, long_id
from api.tools.dialects.known import ToolCallParser, find_dialect, template_text
from api.tools.forced import named_arguments, required_calls
from api.tools.functions import Function
from api.tools.parsing.output import Parser
from api.tools.parsing.reader import CallReader
from api.tools.strict import ReasoningInGrammar, strict_functions, text_with_calls
from api.tools.structured import (
    StructuredOutput,
    call_grammar,
    calls_or_content,
    calls_or_structured,
)
from api.tools.tool_choice import ToolSettings
from api.wire import WireError
from engine.request import Grammar

UNKNOWN_DIALECT = (
    'tool_choice "auto" needs to know how the model writes calls, which its chat template does '
    'not tell: start the server with --tool-call-parser, or choose "required", a function, or '
    '"none"'
)


@dataclass(frozen=True, slots=True)
class ToolCalling:
    """Tool calling of one request, shared by all its choices.

    `past_ids` are the ids of the conversation's earlier calls. `markers` have to be detokenized
    as text even if they are special tokens. `dialect` and `template` are the model's, and set
    if it calls in its own syntax (`tool_choice` "auto").
    """

    tools: ToolSettings
    parser: Parser
    new_id: Callable[[str, int], str]
    past_ids: Sequence[str]
    markers: tuple[str, ...] = ()
    dialect: Dialect | None = None
    template: str = ""

    def new_stream(self) -> ToolCallStream:
        """A parser for the text of one choice."""
        return ToolCallStream(
            CallReader(self.parser, self.tools.offered, self.tools.allowed),
            self.new_id,
            self.past_ids,
            only_first=not self.tools.parallel,
            function_chosen=self.tools.named is not None,
            custom_tools=self.tools.custom_tools,
        )

    def calls_or_structured(self, output: StructuredOutput) -> Grammar | None:
        """See the function of that name."""
        assert self.dialect is not None
        return calls_or_structured(output, self.tools, self.dialect, self.template)

    def call_grammar(self, function: Function) -> Grammar:
        """See the function of that name."""
        assert self.dialect is not None
        return call_grammar(function, self.dialect, self.template)

    def text_with_calls(self, reasoning: ReasoningInGrammar) -> Grammar | None:
        """See the function of that name."""
        assert self.dialect is not None
        return text_with_calls(self.tools, self.dialect, self.template, reasoning)


def tool_calling_of(
    tools: ToolSettings,
    parser_name: ToolCallParser,
    template: object,
    messages: Sequence[Mapping[str, object]],
    *,
    formed: bool = False,
    added_tokens: Collection[str] = (),
) -> ToolCalling:
    """Tool calling for an answer to these messages that may have calls. `formed`: an answer
    without calls is constrained to JSON by a grammar. `added_tokens` are the tokenizer's.
    Raises WireError if the model's dialect is unknown.
    """
    dialect = find_dialect(parser_name, template, added_tokens)
    past_ids = [name for one in messages for name in _calls_in(one)]
    if tools.mode == "required":
        parser = required_calls if tools.named is None else named_arguments(tools.named)
        return ToolCalling(tools, parser, dialect.new_id if dialect else long_id, past_ids)
    if dialect is None:
        raise WireError(UNKNOWN_DIALECT, "tools")
    parser = calls_or_content(dialect) if formed and dialect.write else dialect.parser
    if dialect.strict_parser and strict_functions(tools) and not formed:
        parser = dialect.strict_parser
    text = template_text(template)
    return ToolCalling(tools, parser, dialect.new_id, past_ids, dialect.markers, dialect, text)


def _calls_in(message: Mapping[str, object]) -> Sequence[str]:
    """The ids of a message's calls; empty for a call without an id."""
    calls = message.get("tool_calls")
    named_arguments = calls if isinstance(calls, list) else []
    return [str(one.get("id")) if isinstance(one, Mapping) else "" for one in named_arguments]
