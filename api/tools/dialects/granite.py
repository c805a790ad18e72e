"""Calls as Granite's models write them: a list, behind a mark.

<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]
"""

from api.tools.dialects.dialect import Dialect
from api.tools.parsing.steps import any_name, call_list, calls_behind, space
from api.tools.parsing.tape import Steps, Tape
from api.tools.wishes import Offered
from api.tools.writing import Offer, json_call, marks, row
from engine.grammars.structural_tags import Format

MARK = "<|tool_call|>"


def granite(tape: Tape, offered: Offered) -> Steps:
    """Calls follow the mark; text may come before it."""
    del offered
    return calls_behind(tape, _calls, MARK)


def _calls(tape: Tape) -> Steps:
    yield from call_list(tape, (yield from space()), any_name)


def write(offer: Offer) -> Format:
    """A list, behind the mark."""
    return row(marks(MARK), "[", offer.calls(json_call, ", "), "]")


GRANITE = Dialect(granite, write, (MARK,), (MARK,))
