"""What /v1/completions of vLLM says, word by word."""

import msgspec
import pytest

from api.generated import DONE
from api.generator import EndEvent, Event, FailedEvent, PromptEvent, TicketEvent, TokenEvent
from api.node_logprobs import MIN_LOGPROB
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


def test_a_short_frame_is_no_end() -> None:
    assert read() == []
    assert list(decode_completion(b"data: [DONE]")) == [EndEvent()]
    assert list(decode_completion(DONE)) == [EndEvent()]


@pytest.mark.parametrize("likeliest", [None, 1])
def test_an_end_may_lack_token_ids_and_log_probabilities(likeliest: int | None) -> None:
    said = read(likeliest, choices=[{"text": "", "finish_reason": "length"}])
    assert said == [TokenEvent((), FinishReason.LENGTH)]


@pytest.mark.parametrize(
    ("likeliest", "tokens"), [(None, None), (0, []), (1, [7]), (2, [7, 6]), (-1, [7, 6, 5])]
)
def test_as_many_of_the_likeliest_are_told_as_were_asked_for(
    likeliest: int | None, tokens: list[int] | None
) -> None:
    (event,) = read(likeliest, choices=[{"token_ids": [5], "text": "x", "logprobs": TOLD}])
    assert isinstance(event, TokenEvent)
    told = [[one.token for one in place[1:]] for place in event.logprobs]
    assert told == ([] if tokens is None else [tokens])


@pytest.mark.parametrize("tops", [None, [None, None], [{}, {}]])
def test_log_probabilities_may_come_without_the_likeliest(tops: object) -> None:
    told = {
        "tokens": ["token_id:5", "token_id:6"],
        "token_logprobs": [-3.0, None],
        "top_logprobs": tops,
    }
    places = (Logprob(5, -3.0, 1),), (Logprob(6, MIN_LOGPROB, 1),)
    said = read(0, choices=[{"token_ids": [5, 6], "text": "xy", "logprobs": told}])
    assert said == [TokenEvent((5, 6), logprobs=places)]


def test_a_likely_token_without_a_number_is_none() -> None:
    tops = [{"token_id:5": -3.0, "token_id:6": None}]
    choice = {"token_ids": [5], "text": "x", "logprobs": TOLD | {"top_logprobs": tops}}
    place = (Logprob(5, -3.0, 1), Logprob(5, -3.0, 1))
    assert read(2, choices=[choice]) == [TokenEvent((5,), logprobs=(place,))]


def test_log_probabilities_of_the_prompt_are_those_of_the_choice_that_has_them() -> None:
    scored = {"text": "", "prompt_logprobs": [None, {"7": {"logprob": -1.0, "rank": 2}}]}
    (event,) = read(choices=[{"text": "", "prompt_logprobs": []}, scored])
    assert event == PromptEvent(0, ((Logprob(7, -1.0, 2),),))
