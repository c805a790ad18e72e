"""Calls as Llama 3.1 and its like write them: the whole answer is JSON.

    {"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}

An answer may be JSON without being a call, so only functions that were offered are called.
"""

from functools import partial

from api.tools.dialects.dialect import Dialect
from api.tools.parsing.steps import attempt, call_object, content_until, offered_only, space
from api.tools.parsing.tape import Steps, Tape
from api.tools.wishes import Offered
from api.tools.writing import Offer, json_call
from engine.grammars.structural_tags import Format

TAG = "<|python_tag|>"


def llama3_json(tape: Tape, offered: Offered) -> Steps:
    """Calls begin the answer, or follow the tag."""
    while True:
        yield from attempt(tape, _calls(tape, offered), marked=False)
        yield from content_until(tape, TAG)


def _calls(tape: Tape, offered: Offered) -> Steps:
    """One after the other, until something else comes."""
    letter = yield from space()
    while True:
        yield from call_object(tape, letter, offered_only(offered))
        letter = yield from space()
        if letter == ";":
            letter = yield from space()


def write(offer: Offer) -> Format:
    """Objects behind one another."""
    return offer.calls(partial(json_call, key="parameters"), "; ")


LLAMA = Dialect(
    llama3_json,
    write,
    (TAG,),
    ("<|start_header_id|>", '"parameters": '),
    ("<tool_call>",),
    begins=None,
)
