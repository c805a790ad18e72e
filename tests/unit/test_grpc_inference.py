"""vllm.Inference: every field of a request is heard, or refused by its name."""

from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from typing import Any

import grpc
import pytest

from api.grpc.inference import completion_of
from api.grpc.protos import inference_pb2 as pb
from engine.request import FinishReason, Grammar
from kv_transfer.ticket import KvTicket, to_params
from tests.fakes.grpc_server import CONTEXT, NEWER, asking, fields_of, refusal, serving
from tests.fakes.text import byte_level, saying, served

CAT = byte_level().encode("the cat sat")
LENGTH, STOP = FinishReason.LENGTH, FinishReason.STOP
TICKET = KvTicket("t", "e", "h", 21001, "f", lease_s=2.5, relayed={"remote_block_ids": [[]]})
NOTHING_SAID = {"max_tokens": 20}


def test_what_is_not_said_is_left_to_the_defaults() -> None:
    assert completion_of(asking()) == {"prompt": "the cat", **NOTHING_SAID}
    zeros = asking(
        sampling={"num_sequences": 0, "top_k": 0, "top_p": 0.0, "min_p": 0.0},
        decoding={"presence_penalty": 0.0, "repetition_penalty": 0.0},
        stopping={"max_new_tokens": 0, "min_new_tokens": 0},
        response={"output_text": True},
        truncate_prompt_tokens=0,
        session_id="",
    )
    assert fields_of(completion_of(zeros)) == NOTHING_SAID


def test_every_field_of_a_request_reaches_its_completion() -> None:
    request = asking(
        request_id="r",
        model="tiny",
        temperature=0.5,
        sampling={"num_sequences": 2, "top_k": 4, "top_p": 0.75, "min_p": 0.125, "seed": -7},
        decoding={
            "presence_penalty": 0.5,
            "frequency_penalty": -0.5,
            "repetition_penalty": 1.25,
            "logit_bias": {3: -2.5},
            "allowed_token_ids": [3, 4],
            "regex": "a+",
        },
        stopping={
            "max_new_tokens": 7,
            "min_new_tokens": 2,
            "stop_token_ids": [5, 6],
            "stop_strings": ["x", "y"],
            "include_stop_strings": True,
            "ignore_eos": True,
        },
        response={
            "prompt_candidates": {"top_n": 1},
            "output_candidates": {"top_n": 3},
            "skip_special_tokens": False,
        },
        truncate_prompt_tokens=9,
        priority=-3,
        session_id="s",
    )
    request.kv.cache_salt = "salt"
    request.kv.kv_transfer_params.update({"a": 0.5, "b": [1.0, "x"], "c": {"d": None}})
    assert completion_of(request) == {
        "prompt": "the cat",
        "request_id": "r",
        "model": "tiny",
        "temperature": 0.5,
        "n": 2,
        "top_k": 4,
        "top_p": 0.75,
        "min_p": 0.125,
        "seed": -7,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.25,
        "logit_bias": {"3": -2.5},
        "allowed_token_ids": [3, 4],
        "structured_outputs": {"regex": "a+"},
        "max_tokens": 7,
        "min_tokens": 2,
        "stop_token_ids": [5, 6],
        "stop": ["x", "y"],
        "include_stop_str_in_output": True,
        "ignore_eos": True,
        "prompt_logprobs": 1,
        "logprobs": 3,
        "skip_special_tokens": False,
        "truncate_prompt_tokens": 9,
        "priority": -3,
        "session_id": "s",
        "cache_salt": "salt",
        "kv_transfer_params": {"a": 0.5, "b": [1.0, "x"], "c": {"d": None}},
    }


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"temperature": 0.0}, {"temperature": 0.0}),
        ({"sampling": {"seed": 0}}, {"seed": 0}),
        ({"response": {"skip_special_tokens": True}}, {"skip_special_tokens": True}),
        ({"lora_name": "poet", "model": "tiny"}, {"model": "poet"}),
        ({"response": {"output_logprobs": True}}, {"logprobs": 0}),
        ({"response": {"output_candidates": {"all": True}}}, {"logprobs": -1}),
        ({"response": {"output_candidates": {}}}, {"logprobs": 0}),
        ({"response": {"prompt_logprobs": True}}, {"prompt_logprobs": 0}),
        ({"response": {"prompt_candidates": {"all": True}}}, {"prompt_logprobs": -1}),
        ({"response": {"output_text": False}}, {"return_token_ids": True}),
    ],
)
def test_a_zero_that_was_said_is_no_default(
    fields: dict[str, Any], expected: dict[str, object]
) -> None:
    assert fields_of(completion_of(asking(**fields))) == {**NOTHING_SAID, **expected}


SCHEMA = '{"type": "integer"}'


@pytest.mark.parametrize(
    ("decoding", "grammar"),
    [
        ({"json": SCHEMA}, Grammar("json_schema", SCHEMA)),
        ({"regex": "[0-9]"}, Grammar("regex", "[0-9]")),
        ({"choice": {"choices": ["a", "b"]}}, Grammar("choice", '["a","b"]')),
        ({"grammar": 'start: "a"'}, Grammar("ebnf", 'start: "a"')),
        ({"json_object": True}, Grammar("json_object")),
    ],
)
async def test_structured_outputs_hold_the_answer(
    decoding: dict[str, Any], grammar: Grammar
) -> None:
    door = saying("1")
    async with serving(door) as caller:
        await caller.generate(asking(decoding=decoding))
    assert door.request.sampling.grammar == grammar


async def test_token_ids_are_the_prompt_and_its_end_is_kept() -> None:
    door = saying("the dog")
    request = pb.GenerateRequest(token_ids={"ids": [5, 6, 7]}, truncate_prompt_tokens=2)
    async with serving(door) as caller:
        said = await caller.generate(request)
    assert door.request.prompt == (6, 7)
    assert said.prompt_info.num_prompt_tokens == 2


async def test_the_model_s_own_defaults_apply() -> None:
    model, door = served(context=CONTEXT), saying("the dog")
    own = replace(model, defaults=replace(model.defaults, temperature=0.25))
    async with serving(door, own) as caller:
        await caller.generate(asking())
    assert door.request.sampling.temperature == 0.25
    assert door.request.sampling.max_tokens == 20


REFUSED: dict[str, pb.GenerateRequest] = {
    "media": asking(media=[b"picture"]),
    "output_candidates": asking(response={"output_candidates": {"token_ids": {"ids": [1]}}}),
    "prompt_candidates": asking(response={"prompt_candidates": {"token_ids": {"ids": [1]}}}),
    "ec_transfer_params": asking(kv={"ec_transfer_params": {"a": 1}}),
    "num_sequences": asking(sampling={"num_sequences": 2}),
    "stop_token_ids": asking(stopping={"stop_token_ids": [2**32 - 1]}),
    "max_tokens": asking(stopping={"max_new_tokens": 2**32 - 1}),
    "top_k": asking(sampling={"top_k": 2**32 - 1}),
    "logprobs": asking(response={"output_candidates": {"top_n": 2**32 - 1}}),
    "logit_bias": asking(decoding={"logit_bias": {2**32 - 1: 1.0}}),
    "prompt": pb.GenerateRequest(token_ids={"ids": [2**32 - 1]}),
    "sampling: field 99": asking(sampling=pb.RandomSampling.FromString(NEWER)),
    "decoding: field 99": asking(decoding=pb.DecodingParameters.FromString(NEWER)),
    "stopping: field 99": asking(stopping=pb.StoppingCriteria.FromString(NEWER)),
    "response: field 99": asking(response=pb.ResponseOptions.FromString(NEWER)),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_refused_field_is_named_and_its_kv_given_up(name: str) -> None:
    request = pb.GenerateRequest.FromString(REFUSED[name].SerializeToString())
    params: Any = to_params(TICKET)
    request.kv.kv_transfer_params.update(params)
    door = saying("the dog")
    async with serving(door) as caller:
        ended = await refusal(caller.generate(request))
        assert [leg.ticket for leg in caller.declined] == [TICKET]
    assert ended.code is grpc.StatusCode.INVALID_ARGUMENT
    assert name in ended.why
    assert not door.asked


@pytest.mark.parametrize("number", [nan, inf, -inf])
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("temperature", lambda number: {"temperature": number}),
        ("top_p", lambda number: {"sampling": {"top_p": number}}),
        ("repetition_penalty", lambda number: {"decoding": {"repetition_penalty": number}}),
        ("logit_bias", lambda number: {"decoding": {"logit_bias": {3: number}}}),
        ("kv_transfer_params", lambda number: {"kv": {"kv_transfer_params": {"a": number}}}),
    ],
)
async def test_no_number_is_no_default(
    number: float, name: str, fields: Callable[[float], dict[str, Any]]
) -> None:
    """JSON, which it is asked in, has null for those."""
    door = saying("the dog")
    async with serving(door) as caller:
        ended = await refusal(caller.generate(asking(**fields(number))))
    assert ended.code is grpc.StatusCode.INVALID_ARGUMENT
    assert name in ended.why
    assert not door.asked
