"""The page of messages names what the code has, and no field is left out."""

import re

from api.bodies import ChatBody
from api.messages import blocks, bodies, errors, events, shapes
from api.messages.fields import MESSAGES
from tests.house.test_docs import REFERENCE, SPAN, code_of

PAGE = (REFERENCE / "messages.md").read_text()
STRUCTS = [
    *(bodies.CustomTool, bodies.ToolChoice, bodies.ThinkingConfig, bodies.OutputFormat),
    *(bodies.OutputConfig, bodies.Metadata, blocks.InputMessage, blocks.TextBlockParam),
    *(
        blocks.ThinkingBlockParam,
        blocks.ToolUseBlockParam,
        blocks.ToolResultBlockParam,
        blocks.ToolReferenceBlockParam,
    ),
    *(shapes.TextBlock, shapes.ThinkingBlock, shapes.ToolUseBlock, shapes.OutputDetails),
    *(shapes.MessageUsage, shapes.MessageAnswer, shapes.OriginalTokens, shapes.TokenCount),
    *(errors.MessagesError, errors.MessagesErrorDetail, errors.MessagesErrorCode),
    *(events.MessageStart, events.Ping, events.BlockStart, events.BlockDelta),
    *(events.TextDelta, events.ThinkingDelta, events.SignatureDelta, events.InputDelta),
    *(events.BlockStop, events.Stop, events.MessageDelta, events.MessageStop),
]


def test_every_field_on_the_wire_is_on_the_page() -> None:
    named = set(re.findall(r"\w+", code_of(PAGE)))
    missing = {name for kind in STRUCTS for name in kind.__struct_fields__} - named
    assert not missing


def test_every_event_and_block_is_on_the_page() -> None:
    named = set(re.findall(r"\w+", code_of(PAGE)))
    tags = {kind.__struct_config__.tag for kind in STRUCTS} - {None}
    assert tags <= named


def test_what_is_honoured_and_what_is_refused_is_on_the_page() -> None:
    fields, _, _ = PAGE.partition("## Messages and blocks")
    own = {*bodies.MessagesBody.__struct_fields__} - {*ChatBody.__struct_fields__}
    assert own <= set(SPAN.findall(fields))
    (refused,) = re.findall(r"These are refused by name.*?\n\n", PAGE, re.DOTALL)
    assert {*SPAN.findall(refused)} >= MESSAGES.keys()


def test_every_status_has_the_type_that_it_has_in_the_code() -> None:
    table = PAGE.partition("## Errors")[2]
    told = {
        int(status): kind
        for row in re.findall(r"^\| (\d.*?) \| `(\w+)` \|$", table, re.MULTILINE)
        for status in re.findall(r"\d+", row[0])
        for kind in row[1:]
    }
    assert told.items() >= errors.TYPES.items()
    assert told[400] == "invalid_request_error"
    assert told[500] == "api_error"
