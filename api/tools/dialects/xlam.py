"""Calls as Salesforce's xLAM models write them: a list of JSON, that is the answer or between
marks of others.

[{"name": "f", "arguments": {"a": 1}}]
```json
[{"name": "f", "arguments": {"a": 1}}]
```
[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]
<tool_call>[{"name": "f", "arguments": {"a": 1}}]</tool_call>

What has no marks of calls could be an answer, so only functions that were offered are called
there.
"""

from api.tools.call_formats import CallableTools, json_call_format, seq
from api.tools.dialects.dialect import Dialect
from api.tools.parsing.call_objects import call_list
from api.tools.parsing.output import SPACE, ParserOutput, Steps
from api.tools.parsing.steps import (
    Accepts,
    any_name,
    attempt_call,
    content_until,
    literal,
    offered_only,
    skip_space,
)
from api.tools.tool_choice import OfferedFunctions
from engine.grammars.structural_tags import Format

FENCE, TAG, OPENS, CLOSES = "```", "[TOOL_CALLS]", "<tool_call>", "</tool_call>"
ENDS = {FENCE: FENCE, TAG: "", OPENS: CLOSES}
LANGUAGE = "json"


def xlam(out: ParserOutput, offered: OfferedFunctions) -> Steps:
    """Parse an answer: a list begins it, or follows a mark."""
    accepts = offered_only(offered)
    yield from attempt_call(out, _bare(out, accepts), marked=False)
    while True:
        mark = yield from content_until(out, *ENDS)
        if mark == FENCE:
            yield from attempt_call(out, _fenced(out, accepts), marked=False)
        else:
            yield from attempt_call(out, _marked(out, ENDS[mark]))


def _bare(out: ParserOutput, accepts: Accepts) -> Steps:
    """Parse a list without marks; its first letter may have been read already."""
    letter = out.held.strip(SPACE) or (yield from skip_space())
    yield from call_list(out, letter, accepts)


def _fenced(out: ParserOutput, accepts: Accepts) -> Steps:
    letter = yield from skip_space()
    if letter == LANGUAGE[0]:
        yield from literal(letter, LANGUAGE)
        letter = yield from skip_space()
    yield from call_list(out, letter, accepts)
    yield from literal((yield from skip_space()), FENCE)
    out.drop_held()


def _marked(out: ParserOutput, closes: str) -> Steps:
    """Parse a list of calls; the closing mark may be missing."""
    yield from call_list(out, (yield from skip_space()), any_name)
    if closes:
        yield from literal((yield from skip_space()), closes)
        out.drop_held()


def write(tools: CallableTools) -> Format:
    """Format a list alone, as templates show it."""
    return seq("[", tools.calls(json_call_format, ", "), "]")


SIGN = '[{"name": "tool_call_name"'  # what templates tell models to write
XLAM = Dialect(xlam, write, (TAG, OPENS, CLOSES), (SIGN,), first_letters="[`<")
