"""What /v1/completions of vLLM says, word by word."""

import msgspec
import pytest

from api.generator import Event, FailedEvent, TicketEvent, TokenEvent
from api.wire import WireError
from engine.request import FinishReason, Logprob
from proxy.foreign.completions import decode_completion


def read(likeliest: int | None = None, **said: object) -> list[Event]:
    frame = b"data: " + msgspec.json.encode(said)
    return list(decode_completion(frame, likeliest))


TOLD = {
    "tokens": ["token_id:5"],
    "token_logprobs": [-3.0],
    "top_logprobs": [{"token_id:5": -3.0, "token_id:6": -0.5, "token_id:7": -0.25}],
}


def test_the_token_itself_is_none_of_the_likeliest_by_being_told() -> None:
    choice = {"token_ids": [5], "text": "x", "logprobs": TOLD}
    place = (Logprob(5, -3.0, 3), Logprob(7, -0.25, 1), Logprob(6, -0.5, 2))
    assert read(2, choices=[choice]) == [TokenEvent((5,), logprobs=(place,))]


def test_text_without_token_ids_is_said_to_be_useless() -> None:
    with pytest.raises(WireError, match="return_token_ids"):
        read(choices=[{"text": "the"}])


def test_an_end_may_have_neither() -> None:
    end = {"text": "", "finish_reason": "stop", "stop_reason": 2, "token_ids": []}
    assert read(choices=[end]) == [TokenEvent((), FinishReason.STOP, 2)]


def test_an_error_in_the_stream_may_be_tried_elsewhere() -> None:
    error = {"message": "Internal server error", "type": "E", "param": None, "code": 500}
    assert read(error=error) == [FailedEvent("Internal server error", retryable=True)]


def test_a_ticket_is_kept_word_for_word() -> None:
    params = {
        "do_remote_prefill": True,
        "remote_engine_id": "e",
        "remote_request_id": "r",
        "remote_host": "h",
        "remote_port": "5600",
        "new": None,
    }
    (event,) = read(choices=[], kv_transfer_params=params)
    assert isinstance(event, TicketEvent)
    assert event.ticket.verbatim == params
