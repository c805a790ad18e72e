"""What an answer in token ids tells beside its tokens."""

import msgspec

from api.endpoints import HttpCall, TextEndpoints
from api.generator import PromptEvent, TokenEvent
from api.sse import answer_body, event_stream
from api.token_answers import TokenWriter
from engine.request import FinishReason, Logprob
from tests.fakes.text import FakeDoor, served

PLACES = (Logprob(2, -0.5, 1),), (Logprob(3, -1.5, 2), Logprob(9, -0.25, 1))
DOOR = FakeDoor(
    lambda request, leg: [
        PromptEvent(1, PLACES),
        TokenEvent((5, 6)),
        TokenEvent((), FinishReason.LENGTH),
    ]
)


async def writer(**fields: object) -> TokenWriter:
    body = {"token_ids": [1, 2, 3], "sampling_params": {"prompt_logprobs": 1}, **fields}
    return await TextEndpoints(DOOR, served()).tokens(HttpCall({}, msgspec.json.encode(body)))


async def test_a_prompts_log_probabilities_are_by_token_and_begin_with_the_second() -> None:
    said = msgspec.json.decode(await answer_body(await writer()))
    first, second, third = said["prompt_logprobs"]
    assert (first, list(second), list(third)) == (None, ["2"], ["3", "9"])
    assert third["9"] == {"logprob": -0.25, "rank": 1, "decoded_token": None}
    assert said["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
    assert said["kv_transfer_params"] is None


async def test_each_event_has_what_is_new() -> None:
    told = await writer(stream=True, sampling_params={})
    *events, done, _ = b"".join([one async for one in event_stream(told)]).split(b"\n\n")
    choices = [msgspec.json.decode(one[len("data: ") :])["choices"][0] for one in events]
    assert [one["token_ids"] for one in choices] == [[5, 6], []]
    assert [one["finish_reason"] for one in choices] == [None, "length"]
    assert done == b"data: [DONE]"
