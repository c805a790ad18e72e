"""The page of responses names what the code has, and no field is left out."""

import re

from api.bodies import ChatBody
from api.responses import bodies, events, items, shapes
from api.responses.fields import RESPONSES
from tests.house.test_docs import REFERENCE, SPAN, code_of

PAGE = (REFERENCE / "responses.md").read_text()
STRUCTS = [
    *(
        bodies.FunctionTool,
        bodies.ResponsesNamedFunction,
        bodies.TextFormat,
        bodies.TextConfig,
        bodies.ReasoningConfig,
    ),
    *(items.InputMessage, items.FunctionCall, items.FunctionCallOutput, items.Reasoning),
    *(shapes.OutputText, shapes.ReasoningText, shapes.ReasoningItem, shapes.MessageItem),
    *(shapes.CallItem, shapes.ResponseUsage, shapes.InputDetails, shapes.OutputDetails),
    *(shapes.ResponseError, shapes.IncompleteDetails, shapes.Response),
    *(events.ResponseEvent, events.ItemEvent, events.PartEvent, events.DeltaEvent),
    events.DoneEvent,
]


def test_every_field_on_the_wire_is_on_the_page() -> None:
    named = set(re.findall(r"\w+", code_of(PAGE)))
    missing = {name for kind in STRUCTS for name in kind.__struct_fields__} - named
    assert not missing


def test_what_is_honoured_and_what_is_refused_is_on_the_page() -> None:
    fields, _, _ = PAGE.partition("## Items")
    own = {*bodies.ResponsesBody.__struct_fields__} - {*ChatBody.__struct_fields__}
    assert own <= set(SPAN.findall(fields))
    (refused,) = re.findall(r"These are refused by name.*?\n\n", PAGE, re.DOTALL)
    assert {*SPAN.findall(refused)} >= RESPONSES.keys()
