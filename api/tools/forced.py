"""Answers that a grammar holds to the form of calls: see api/tools/schemas.py."""

from api.tools.parsing.steps import arguments, attempt, call_list, offered_only, rest, space
from api.tools.parsing.tape import NotACall, Parser, Steps, Tape
from api.tools.wishes import Offered


def required(tape: Tape, offered: Offered) -> Steps:
    """A list of calls is all of the answer."""
    yield from attempt(tape, _list(tape, offered))
    yield from rest(tape)


def _list(tape: Tape, offered: Offered) -> Steps:
    yield from call_list(tape, (yield from space()), offered_only(offered))


def named(name: str) -> Parser:
    """The arguments of this function are all of the answer."""

    def parse(tape: Tape, offered: Offered) -> Steps:
        del offered
        yield from attempt(tape, _arguments(tape, name))
        yield from rest(tape)

    return parse


def _arguments(tape: Tape, name: str) -> Steps:
    letter = yield from space()
    if letter != "{":
        raise NotACall
    tape.begin(name)
    yield from arguments(tape, letter)
    tape.end()
