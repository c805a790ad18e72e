"""Calls as DeepSeek's models write them, in a section. V3 and R1:

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f
    ```json
    {"a": 1}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

V3.1, on one line:

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜> …
"""  # noqa: RUF002  its marks are of these letters

from api.tools.parsing.sections import SectionForm, json_call
from api.tools.parsing.steps import name_until, space
from api.tools.parsing.tape import Steps, Tape

OPENS, CLOSES = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"  # noqa: RUF001
CALL, SEPARATOR, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"  # noqa: RUF001
MARKERS = (OPENS, CLOSES, CALL, SEPARATOR, END)
FENCE, JSON_FENCE = "```", "```json"


def _fenced_call(tape: Tape) -> Steps:
    """Its type comes first, of which there is only one."""
    yield from name_until((yield from space()), SEPARATOR)
    name = yield from name_until((yield from space()), JSON_FENCE)
    yield from json_call(tape, name, FENCE, END)


def _call(tape: Tape) -> Steps:
    name = yield from name_until((yield from space()), SEPARATOR)
    yield from json_call(tape, name, END)


deepseek_v3 = SectionForm((OPENS,), (CLOSES,), CALL, _fenced_call).parser()
deepseek_v31 = SectionForm((OPENS,), (CLOSES,), CALL, _call).parser()
