"""What is asked for in token ids is a completion of them."""

from dataclasses import replace

import msgspec
import pytest

from api.bodies import CompletionBody, StreamOptions, read_completion
from api.defaults import Defaults
from api.endpoints import HttpCall, TextEndpoints
from api.errors import BadRequest
from api.token_bodies import HONOURED, TokensBody, read_tokens
from tests.fakes.text import saying, served

PARAMS = {
    **{"n": 2, "max_tokens": 3, "min_tokens": 1, "temperature": 0.5, "top_p": 0.5, "top_k": 7},
    **{"min_p": 0.1, "seed": 5, "presence_penalty": 1.0, "frequency_penalty": 0.5},
    **{"repetition_penalty": 1.5, "logit_bias": {"3": 1.0}, "allowed_token_ids": [1, 2]},
    **{"bad_words": ["cat"], "logprobs": 1, "prompt_logprobs": 0, "stop": ["."]},
    **{"stop_token_ids": [9], "ignore_eos": True, "include_stop_str_in_output": True},
    **{"structured_outputs": {"regex": "a"}, "skip_special_tokens": False},
    **{"truncate_prompt_tokens": 2, "truncation_side": "right"},
}
AROUND = {
    **{"model": "m", "stream": True, "stream_options": {"include_usage": True}, "priority": 3},
    **{"timeout": 2.5, "cache_salt": "s", "request_id": "r", "session_id": "t", "user": "u"},
    **{"kv_transfer_params": {}, "pdserve": {"timings": True}},
}


def asked(**fields: object) -> CompletionBody:
    body = {"token_ids": [1, 2], "sampling_params": {}, **fields}
    return read_tokens(msgspec.json.encode(body))


def test_every_field_means_what_it_means_there() -> None:
    assert {*PARAMS} == {*HONOURED} <= {*CompletionBody.__struct_fields__}
    assert {*AROUND, "token_ids", "sampling_params"} == {*TokensBody.__struct_fields__}
    same = {"prompt": [1, 2], "return_token_ids": True, **PARAMS, **AROUND}
    said = asked(sampling_params=PARAMS, **AROUND)
    assert said == read_completion(msgspec.json.encode(same))
    assert said.stream_options == StreamOptions(include_usage=True)


def test_what_is_no_sampling_is_not_taken_from_there() -> None:
    assert asked(sampling_params={"stream": True, "prompt": "x", "echo": True}) == asked()


def test_what_is_neutral_changes_nothing() -> None:
    neutral = {"output_mode": "tokens", "num_generated": 0, "features": None}
    assert asked(**neutral, sampling_params={"sample_index": 0, "extra_args": {}}) == asked()


async def test_the_models_defaults_do_not_count() -> None:
    """Nor do they at a node: what is not said of sampling is vLLM's own."""
    cold = replace(served(), defaults=Defaults(temperature=0.0, max_new_tokens=99))
    data = msgspec.json.encode({"token_ids": [1, 2], "sampling_params": {}})
    writer = await TextEndpoints(saying("the"), cold).tokens(HttpCall({}, data))
    sampling = writer.answer.request.calls[0].request.sampling
    assert (sampling.temperature, sampling.max_tokens) == (1.0, 16)


@pytest.mark.parametrize(
    "field", ["guided_regex", "guided_json", "structural_tag", "grammar_behind"]
)
def test_a_grammar_in_other_words_is_refused_as_nodes_do(field: str) -> None:
    with pytest.raises(BadRequest) as refused:
        asked(sampling_params={field: "a+"})
    assert field in str(refused.value)
