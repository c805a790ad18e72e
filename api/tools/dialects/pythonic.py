"""Calls in Python, as many models write them: in a list, with marks around it or none, or one
on each line.

<|tool_call_start|>[f(a="x", b=1), g()]<|tool_call_end|>        LFM2
[f(a="x", b=1), g()]                                             Llama 3.2, ToolACE
<|python_start|>[f(a="x", b=1), g()]<|python_end|>               Llama 4, or bare
<function_calls>
f(a="x", b=1)
g()
</function_calls>                                                Olmo 3

What stands in no marks could be an answer, and behind Llama's is Python of any kind: only
functions that were offered are called there.
"""

import re
import string
from dataclasses import replace
from functools import partial

from api.tools.dialects.dialect import Bare, Dialect
from api.tools.parsing.kinds import resolved
from api.tools.parsing.python_values import python_value
from api.tools.parsing.steps import (
    NAME_LETTERS,
    Accepts,
    any_name,
    attempt,
    calls_behind,
    literal,
    name_until,
    offered_only,
    rest,
    space,
)
from api.tools.parsing.tape import SPACE, NotACall, Steps, Tape
from api.tools.wishes import Offered
from api.tools.writing import (
    BLANKS,
    Offer,
    Schema,
    marks,
    named_values,
    one_as_json,
    row,
    text_as_json,
)
from engine.grammars.structural_tags import (
    Format,
    JsonSchema,
    Regex,
    Star,
)

OPENS, CLOSES = "<|tool_call_start|>", "<|tool_call_end|>"
PYTHON, END_OF_PYTHON = "<|python_start|>", "<|python_end|>"
LINES, END_OF_LINES = "<function_calls>", "</function_calls>"
ANY_KEY = "[A-Za-z_][A-Za-z0-9_]*"
SIGNS = "<|tool_", "_start|>"  # of a call, or of the list of tools
SHOWN = "[func_name1("  # what templates tell models to write
LLAMA_4 = "<|header_start|>"
KEY_LETTERS = frozenset(string.ascii_letters + string.digits + "_-$")


def lfm2(tape: Tape, offered: Offered) -> Steps:
    """A list of calls is behind the mark; text may come before it."""
    del offered
    return calls_behind(tape, partial(_listed, closes=CLOSES, accepts=any_name), OPENS)


def pythonic(tape: Tape, offered: Offered) -> Steps:
    """A list of calls is the whole answer."""
    yield from attempt(tape, _bare(tape, offered), marked=False)
    yield from rest(tape)


def llama4(tape: Tape, offered: Offered) -> Steps:
    """A list of calls begins the answer, or is behind the mark."""
    yield from attempt(tape, _bare(tape, offered), marked=False)
    listed = partial(_listed, closes=END_OF_PYTHON, accepts=offered_only(offered))
    yield from calls_behind(tape, listed, PYTHON)


def olmo3(tape: Tape, offered: Offered) -> Steps:
    """Calls are behind the mark, up to the one that closes; text may come before it."""
    del offered
    return calls_behind(tape, _lines, LINES)


def _bare(tape: Tape, offered: Offered) -> Steps:
    """Its first letter may have been read."""
    letter = tape.held.strip(SPACE) or (yield from space())
    yield from _list(tape, letter, offered_only(offered))


def _listed(tape: Tape, closes: str, accepts: Accepts) -> Steps:
    """A mark that closes is not missed where it is not."""
    yield from _list(tape, (yield from space()), accepts)
    yield from literal((yield from space()), closes)
    tape.drop()


def _list(tape: Tape, letter: str, accepts: Accepts) -> Steps:
    yield from literal(letter, "[")
    letter = ","
    while letter == ",":
        yield from _call(tape, (yield from space()), accepts)
        letter = yield from space()
    yield from literal(letter, "]")
    tape.drop()


def _lines(tape: Tape) -> Steps:
    letter = yield from space()
    while True:
        yield from _call(tape, letter, any_name)
        if (letter := (yield from space())) == END_OF_LINES[0]:
            break
    yield from literal(letter, END_OF_LINES)
    tape.drop()


def _call(tape: Tape, letter: str, accepts: Accepts) -> Steps:
    name = yield from name_until(letter, "(", NAME_LETTERS)
    if not accepts(name):
        raise NotACall
    tape.begin(name)
    said = set[str]()
    letter = yield from space()
    while letter != ")":
        key = yield from name_until(letter, "=", KEY_LETTERS)
        value, letter = yield from python_value((yield from space()))
        if key in said:
            raise NotACall
        tape.argue(f'{", " if said else "{"}"{key}": {value}')
        said.add(key)
        letter = (yield from space()) if letter == "," else letter
    tape.argue("}" if said else "{}")
    tape.end()


def write(offer: Offer) -> Format:
    """A list between marks. Values are JSON, which Python has, too, but for its words."""
    return row(marks(OPENS), write_bare(offer), marks(CLOSES))


def write_bare(offer: Offer) -> Format:
    """A list alone, as templates show it."""
    return row("[", offer.calls(_written, ", "), "]")


def begins(name: str) -> str:
    """What tells a list of calls from other lists, of which text may be."""
    return rf"{BLANKS}\[{BLANKS}{re.escape(name)}{BLANKS}\("


def write_begun(offer: Offer) -> Format:
    """A list alone, begun as models may write it."""

    def first(name: str, schema: Schema) -> Format:
        return row(Regex(begins(name)), _arguments(schema), ")")

    one = replace(offer, parallel=False)
    others = [Star(row(", ", one.calls(_written)))] if offer.parallel else []
    return row(one.calls(first), *others, "]")


def write_lines(offer: Offer) -> Format:
    """One on each line."""
    return row(marks(LINES), offer.calls(_written, "\n"), marks(END_OF_LINES))


def _written(name: str, schema: Schema) -> Format:
    return row(f"{name}(", _arguments(schema), ")")


def _arguments(schema: Schema) -> Format:
    anything = row(Regex(ANY_KEY), "=", JsonSchema(json_schema=True))
    named = resolved(schema, schema)
    return named_values(
        named, lambda key, one: row(f"{key}=", _value(one, schema)), anything, ", "
    )


def _value(schema: object, root: Schema) -> Format:
    return text_as_json(root) or one_as_json(schema, root) or JsonSchema(json_schema=True)


LFM2 = Dialect(lfm2, write, (OPENS, CLOSES), SIGNS, opens=(OPENS,))
PYTHONIC = Dialect(
    pythonic,
    write_bare,
    (),
    (SHOWN,),
    (LLAMA_4,),
    begins="[",
    bare=Bare(begins, write_begun),
)
LLAMA4 = Dialect(
    llama4,
    write_bare,
    (PYTHON, END_OF_PYTHON),
    (SHOWN, LLAMA_4),
    begins="[<",
    bare=Bare(begins, write_begun, (PYTHON,)),
    firm=pythonic,
)
OLMO3 = Dialect(
    olmo3, write_lines, (LINES, END_OF_LINES), (LINES,), ("<invoke ",), opens=(LINES,)
)
