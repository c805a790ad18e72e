"""The bodies that nodes of vLLM are asked with, word by word."""

from typing import Any

import msgspec
import pytest

from engine.request import Request, RequestId, Sampling
from proxy.foreign.bodies import MOST_SEED, completion_body, generate_body, sampling_params

PARAMS = {"do_remote_decode": True}
SAMPLING = Sampling(9, min_tokens=3, temperature=0.5, seed=5)
REQUEST = Request(RequestId("r"), (1, 2), SAMPLING, (7,))


def asked(**more: Any) -> Request:  # noqa: ANN401
    return msgspec.structs.replace(REQUEST, **more)


def completion(request: Request, model: str | None = "m", *, hold: bool = False) -> Any:  # noqa: ANN401
    return msgspec.json.decode(completion_body(request, model, None, hold))


def test_the_endpoint_for_token_ids() -> None:
    said = msgspec.json.decode(generate_body(REQUEST, "outer", PARAMS, hold=True))
    assert said == {
        "request_id": "outer",
        "token_ids": [1, 2, 7],
        "sampling_params": sampling_params(REQUEST, hold=True) | {"stop_token_ids": []},
        "stream": False,
        "kv_transfer_params": PARAMS,
    }


def test_what_the_request_does_not_ask_for_is_not_told() -> None:
    told = sampling_params(REQUEST, hold=False)
    assert not [name for name, value in told.items() if value is None or value == {}]
    assert told.keys().isdisjoint({"sample_index", "bad_words", "grammar", "grammar_behind"})


def test_completions_are_of_token_ids_and_say_theirs() -> None:
    said = completion(REQUEST)
    for name, value in sampling_params(REQUEST, hold=False).items():
        assert said.pop(name) == (list(value) if isinstance(value, tuple) else value)
    assert said == {
        "model": "m",
        "prompt": [1, 2, 7],
        "add_special_tokens": False,
        "skip_special_tokens": False,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "stream": True,
    }
    assert "model" not in completion(REQUEST, None)


def test_what_no_stream_would_tell_is_not_streamed() -> None:
    scored = msgspec.structs.replace(SAMPLING, prompt_logprobs=0)
    assert completion(REQUEST, hold=True)["stream"] is False
    assert completion(asked(sampling=scored))["stream"] is False


def test_salt_and_priority_are_told_where_there_are_any() -> None:
    said = completion(asked(cache_salt="s", priority=-1))
    assert (said["cache_salt"], said["priority"]) == ("s", -1)


@pytest.mark.parametrize(
    ("least", "most", "hold", "told"),
    [(3, 9, False, (8, 2)), (3, 9, True, (1, 1)), (0, 9, True, (1, 0)), (1, 9, False, (8, 0))],
)
def test_tokens_are_counted_from_where_the_answer_goes_on(
    least: int, most: int, hold: bool, told: tuple[int, int]
) -> None:
    sampling = msgspec.structs.replace(SAMPLING, min_tokens=least, max_tokens=most)
    said = sampling_params(asked(sampling=sampling), hold)
    assert (said["max_tokens"], said["min_tokens"]) == told


def test_choices_have_seeds_of_their_own_that_vllm_can_hold() -> None:
    def seed(seed: int, index: int) -> Any:  # noqa: ANN401
        sampling = msgspec.structs.replace(SAMPLING, seed=seed, sample_index=index)
        return sampling_params(asked(sampling=sampling), hold=False)["seed"]

    assert seed(5, 0) == 5
    said = {seed(start, index) for start in (5, 6, 2**64 - 1) for index in range(4)}
    assert len(said) == 3 * 4
    assert all(0 <= one <= MOST_SEED for one in said)
