"""What messages are refused for: in their own words, and in Anthropic's form."""

import msgspec
import pytest

from api.errors import ApiError, BadRequest, ContextTooLong, ModelNotFound, body_of, error_body
from api.messages.errors import is_of_messages
from api.messages.to_chat import error_for_messages
from api.refusals import error_response, request_id_headers
from api.tools.calling import UNKNOWN_DIALECT


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("messages[3].content", "messages[3].content"),
        ("tools[1].function.parameters", "tools[1].input_schema"),
        ("tools[1].function.parameters.type", "tools[1].input_schema.type"),
        ("tools[1].function.name", "tools[1].name"),
        ("tool_choice.function.name", "tool_choice.name"),
        ("response_format.json_schema.schema", "output_config.format.schema"),
        ("reasoning_effort", "output_config.effort"),
        ("stop", "stop_sequences"),
        ("stop_token_ids", "stop_token_ids"),
    ],
)
def test_a_chats_refusal_is_told_in_own_words(theirs: str, ours: str) -> None:
    told = error_for_messages(BadRequest(f"{theirs}: no", theirs))
    assert (str(told), told.param) == (f"{ours}: no", ours)


def test_choices_of_tools_have_their_own_names() -> None:
    told = str(error_for_messages(BadRequest(UNKNOWN_DIALECT, "tools")))
    assert told.endswith(', or choose "any", "tool" or "none"')
    assert "required" not in told


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        (250, "prompt is too long: 250 tokens > 200 maximum"),
        (None, "prompt is too long: more than 400 tokens > 200 maximum"),
    ],
)
def test_a_prompt_that_is_too_long_is_told_as_clients_know_it(
    prompt: int | None, said: str
) -> None:
    told = error_for_messages(ContextTooLong("no", prompt=prompt, context=200))
    assert (str(told), told.code) == (said, "context_length_exceeded")
    other = ContextTooLong("no")
    assert error_for_messages(other) is other


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
def test_a_status_has_a_type_of_anthropics(status: int, kind: str) -> None:
    body = error_body(status, "no")
    told = msgspec.to_builtins(error_response("/v1/messages", status, body, "mine"))
    assert told == {
        "type": "error",
        "error": {"type": kind, "message": "no"},
        "request_id": "mine",
    }


def test_a_code_is_told_beside_the_message() -> None:
    error: ApiError = ModelNotFound("no", "model")
    told = error_response("/v1/messages/count_tokens", 404, body_of(error), None)
    assert '"details":{"error_code":"model_not_found"}' in _json(told)
    assert '"request_id":null' in _json(told)


def _json(told: object) -> str:
    return msgspec.json.encode(told).decode()


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/messages/"])
def test_these_paths_are_of_messages(path: str) -> None:
    assert is_of_messages(path)
    assert request_id_headers(path, "mine") == {"X-Request-Id": "mine", "request-id": "mine"}
    assert request_id_headers(path, None) == {}


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messagesX", "/v1", "/x/v1/messages"])
def test_others_are_not(path: str) -> None:
    assert not is_of_messages(path)
    body = error_body(400, "no")
    assert error_response(path, 400, body, "mine") is body
    assert request_id_headers(path, "mine") == {"X-Request-Id": "mine"}
