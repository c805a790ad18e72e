"""A node may answer with numbers that are no tokens: then its answer is none."""

from collections.abc import Callable, Sequence

import msgspec
import pytest

from api.generated import decode_event
from api.generator import Event
from api.wire import WireError
from engine.request import LARGEST_TOKEN
from proxy.foreign.completions import decode_completion

NONE = [-1, LARGEST_TOKEN + 1, 2**63, 10**30]
NAMES = [*NONE, "9" * 5_000]
Decode = Callable[[bytes], Sequence[Event]]
EITHER = pytest.mark.parametrize("decode", [decode_event, decode_completion])


def refused(decode: Decode, said: object) -> bool:
    with pytest.raises(WireError):
        decode(b"data: " + msgspec.json.encode(said))
    return True


@EITHER
@pytest.mark.parametrize("number", NONE)
def test_as_a_token(decode: Decode, number: int) -> None:
    assert refused(decode, {"choices": [{"token_ids": [7, number]}]})


@EITHER
@pytest.mark.parametrize("number", NONE)
def test_as_a_token_of_the_prompt(decode: Decode, number: int) -> None:
    places = [None, {str(number): {"logprob": -1.0, "rank": 1}}]
    said = {"choices": [{"prompt_logprobs": places}], "prompt_logprobs": places}
    assert refused(decode, said)


@pytest.mark.parametrize("number", NAMES)
def test_as_the_name_of_a_likely_token(number: object) -> None:
    place = {"token": f"token_id:{number}", "logprob": -1.0}
    choice = {"token_ids": [7], "logprobs": {"content": [place]}}
    assert refused(decode_event, {"choices": [choice]})


@pytest.mark.parametrize("number", NONE)
def test_as_the_id_beside_a_name(number: int) -> None:
    place = {"token": "token_id:7", "logprob": -1.0, "token_id": number}
    choice = {"token_ids": [7], "logprobs": {"content": [place]}}
    assert refused(decode_event, {"choices": [choice]})


@pytest.mark.parametrize("number", NONE)
def test_as_a_likely_token_in_our_own_form(number: int) -> None:
    extra = {"logprobs": [[[number, -1.0, 1]]]}
    assert refused(decode_event, {"choices": [{"token_ids": [7]}], "pdserve": extra})


@EITHER
def test_the_largest_is_one(decode: Decode) -> None:
    (event,) = decode(msgspec.json.encode({"choices": [{"token_ids": [LARGEST_TOKEN]}]}))
    assert getattr(event, "tokens", None) == (LARGEST_TOKEN,)
