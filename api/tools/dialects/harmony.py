"""Calls as gpt-oss writes them: messages to functions, in OpenAI's Harmony.

    <|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>

What reads its channels (`api/reasoning/channels.py`) gives all headers of calls this form, and
leaves of other messages the text.
"""

from api.tools.dialects.dialect import Dialect
from api.tools.parsing.steps import arguments, calls_behind, space
from api.tools.parsing.tape import NotACall, Step, Steps, Tape
from api.tools.wishes import Offered

CHANNEL, MESSAGE = "<|channel|>", "<|message|>"
FUNCTION = CHANNEL + "commentary to=functions."
LONGEST_HEADER = 400  # characters


def harmony(tape: Tape, offered: Offered) -> Steps:
    """Each is named by its header: the client is told of it, offered or not."""
    del offered
    return calls_behind(tape, _call, FUNCTION)


def _call(tape: Tape) -> Steps:
    header = yield from _header()
    name = header.removesuffix(MESSAGE).partition("<")[0].strip()
    if not name:
        raise NotACall
    tape.begin(name)
    yield from arguments(tape, (yield from space()))
    tape.end()


def _header() -> Step:
    """Comes to all of it; raises NotACall."""
    header = ""
    while not header.endswith(MESSAGE):
        header += yield
        if len(header) > LONGEST_HEADER:
            raise NotACall
    return header


HARMONY = Dialect(
    harmony, None, (CHANNEL, MESSAGE, "<|constrain|>", "<|call|>"), ("<|channel|>commentary",)
)
