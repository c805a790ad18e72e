"""Grammars of free text in which calls of strict functions follow their schemas. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from api.tools.call_formats import ANY_OBJECT, CallableTools, seq, split_marker
from api.tools.dialects.dialect import Dialect, UnmarkedCalls
from api.tools.schemas import parameters_of
from api.tools.tool_choice import ToolSettings
from api.wire import WireError
from engine.grammars.structural_tags import (
    AnyText,
    Either,
    Format,
    Tag,
    TriggeredTags,
    structural_tag_of,
)
from engine.request import Grammar

MOST_TOGETHER = 100
"""The most calls after one marker: xgrammar allows no unbounded repetition in a tag without an
end.
"""


def strict_functions(tools: ToolSettings) -> Collection[str]:
    """Names of the callable functions that are strict."""
    return [name for name, one in tools.offered.items() if one.strict]


@dataclass(frozen=True, slots=True)
class ReasoningInGrammar:
    """How reasoning occurs in the text that a grammar constrains. `special_tokens`: the marks
    of reasoning in that text. `channels`: the answer is in Harmony's channels; `mid_message`:
    it begins in the middle of such a message.
    """

    special_tokens: Sequence[str] = ()
    channels: bool = False
    mid_message: bool = False


NO_REASONING = ReasoningInGrammar()


def text_with_calls(
    tools: ToolSettings,
    dialect: Dialect,
    template: str,
    reasoning: ReasoningInGrammar = NO_REASONING,
) -> Grammar | None:
    """A grammar of any text in which calls, in the dialect's syntax, are of offered functions.
    Functions that are not strict take any object, custom tools their text. None: nothing shows
    where calls begin. Raises WireError.
    """
    bound = tools.custom_tools.union(strict_functions(tools))
    schemas = {
        name: parameters_of(one) if name in bound else ANY_OBJECT
        for name, one in tools.offered.items()
    }
    functions = CallableTools(schemas, tools.parallel, template)
    reasoning_marks = reasoning.special_tokens
    try:
        if reasoning.channels and dialect.messages is not None:
            text = dialect.messages(functions, begun=reasoning.mid_message)
        elif dialect.start_markers and not reasoning.channels:
            text = _after_markers(dialect, functions, reasoning_marks)
        elif dialect.unmarked is not None and not reasoning.channels and not reasoning_marks:
            text = _at_the_beginning(dialect.unmarked, functions)
        else:
            return None
        return Grammar("structural_tag", structural_tag_of(text))
    except RecursionError as error:
        raise WireError("tools: a schema is nested too deeply", "tools") from error


def _after_markers(
    dialect: Dialect, functions: CallableTools, special_tokens: Sequence[str]
) -> Format:
    assert dialect.write is not None
    calls = dialect.write(replace(functions, parallel=False))
    one_marker_each = not isinstance(calls, Either)
    if functions.parallel and one_marker_each:
        calls = dialect.write(replace(functions, most=MOST_TOGETHER))
    mark, behind = split_marker(calls)
    if dialect.beside_calls is not None:
        behind = Either((behind, dialect.beside_calls))
    others = *dialect.wrapper_tokens, *special_tokens
    return TriggeredTags(
        (mark, *others),
        (Tag(mark, behind, ""), *(Tag(one, seq(), "") for one in others)),
        stop_after_first=not (functions.parallel or others),
        excludes=tuple(one for one in dialect.start_markers if one != mark),
    )


def _at_the_beginning(calls: UnmarkedCalls, functions: CallableTools) -> Format:
    """Calls, or text that does not begin like a call."""
    begins = "|".join(f"(?:{calls.begins(name)})" for name in functions.schemas)
    return Either((AnyText(calls.excluded_markers, begins), calls.write(functions)))
