"""What a chat is refused for, in the words of responses."""

import pytest

from api.errors import BadRequest, ContextTooLong
from api.responses.to_chat import FIELD_NAMES


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("messages", "input"),
        ("messages[3].content", "input"),
        ("tools[1].function.parameters", "tools[1].parameters"),
        ("tool_choice.function.name", "tool_choice.name"),
        ("tool_choice.custom.name", "tool_choice.name"),
        ("tools[1].custom.format", "tools[1].format"),
        ("tool_choice.allowed_tools.tools[2].function.name", "tool_choice.tools[2].name"),
        ("tool_choice.allowed_tools.tools[2].custom.name", "tool_choice.tools[2].name"),
        ("response_format.json_schema.schema", "text.format.schema"),
        ("response_format", "text.format"),
        ("max_completion_tokens", "max_output_tokens"),
        ("reasoning_effort", "reasoning.effort"),
        ("temperature", "temperature"),
    ],
)
def test_a_chats_refusal_is_told_in_own_words(theirs: str, ours: str) -> None:
    told = FIELD_NAMES.translate(ContextTooLong(f"{theirs}: no", theirs))
    assert (str(told), told.param) == (f"{ours}: no", ours)
    assert told.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("min_tokens is more than max_tokens=3", "min_tokens is more than max_output_tokens=3"),
        (
            "response_format and structured_outputs exclude each other",
            "text.format and structured_outputs exclude each other",
        ),
        ("there is no function `max_tokens`", "there is no function `max_tokens`"),
    ],
)
def test_what_a_refusal_says_of_other_fields_has_their_own_names(
    theirs: str, ours: str
) -> None:
    assert str(FIELD_NAMES.translate(BadRequest(theirs, "min_tokens"))) == ours


def test_a_refusal_without_a_field_stays_as_it_is() -> None:
    error = BadRequest("no")
    assert FIELD_NAMES.translate(error) is error
