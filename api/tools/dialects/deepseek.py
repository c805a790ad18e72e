"""Calls as DeepSeek's models write them, in a section. V3 and R1:

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f
    ```json
    {"a": 1}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

V3.1, on one line:

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜> …
"""  # noqa: RUF002  its marks are of these letters

from api.tools.call_formats import (
    CallableTools,
    Schema,
    arguments_format,
    seq,
    tokens,
)
from api.tools.dialects.dialect import Dialect
from api.tools.parsing.output import ParserOutput, Steps
from api.tools.parsing.sections import SectionForm, read_json_call
from api.tools.parsing.steps import name_until, skip_space
from engine.grammars.structural_tags import Format

OPENS, CLOSES = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"  # noqa: RUF001
CALL, SEPARATOR, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"  # noqa: RUF001
MARKERS = (OPENS, CLOSES, CALL, SEPARATOR, END)
TYPE, FENCE, JSON_FENCE = "function", "```", "```json"


def _fenced_call(out: ParserOutput) -> Steps:
    """The format of V3 and R1: the call's type comes first, of which there is only one."""
    yield from name_until((yield from skip_space()), SEPARATOR)
    name = yield from name_until((yield from skip_space()), JSON_FENCE)
    yield from read_json_call(out, name, FENCE, END)


def _call(out: ParserOutput) -> Steps:
    name = yield from name_until((yield from skip_space()), SEPARATOR)
    yield from read_json_call(out, name, END)


deepseek_v3 = SectionForm((OPENS,), (CLOSES,), CALL, _fenced_call).parser()
deepseek_v31 = SectionForm((OPENS,), (CLOSES,), CALL, _call).parser()


def write_v3(tools: CallableTools) -> Format:
    """A section of calls in fences."""
    return seq(tokens(OPENS), tools.calls(_written_in_fences, "\n"), tokens(CLOSES))


def _written_in_fences(name: str, schema: Schema) -> Format:
    head = seq(tokens(CALL), TYPE, tokens(SEPARATOR), f"{name}\n{JSON_FENCE}\n")
    return seq(head, arguments_format(schema), f"\n{FENCE}", tokens(END))


def write_v31(tools: CallableTools) -> Format:
    """A section of calls on one line."""
    return seq(tokens(OPENS), tools.calls(_written), tokens(CLOSES))


def _written(name: str, schema: Schema) -> Format:
    return seq(tokens(CALL), name, tokens(SEPARATOR), arguments_format(schema), tokens(END))


V3 = Dialect(deepseek_v3, write_v3, MARKERS, (CALL, JSON_FENCE), start_markers=(OPENS,))
V31 = Dialect(deepseek_v31, write_v31, MARKERS, (CALL,), (JSON_FENCE,), start_markers=(OPENS,))
