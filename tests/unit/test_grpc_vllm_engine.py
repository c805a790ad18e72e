"""vllm.grpc.engine.VllmEngine: what the SMG router asks, and what it is answered."""

from collections.abc import Mapping
from dataclasses import replace
from math import nan
from typing import Any

import grpc
import msgspec
import pytest

from api.generator import Event, PromptEvent, TicketEvent, TokenEvent
from api.grpc.protos import vllm_engine_pb2 as pb
from api.grpc.vllm_requests import completion_of
from engine.request import FinishReason, Grammar, Logprob
from kv_transfer.ticket import HOLD, KvTicket, to_params
from tests.fakes.grpc_server import CONTEXT, NEWER, fields_of, refusal, serving
from tests.fakes.text import FakeDoor, byte_level, saying, says, served

CAT = byte_level().encode("the cat sat")
LENGTH, STOP = FinishReason.LENGTH, FinishReason.STOP
TICKET = KvTicket("t", "e", "h", 21001, "f", lease_s=2.5, relayed={"remote_block_ids": [[]]})
NOTHING_SAID = {"skip_special_tokens": False, "return_token_ids": True}
SCHEMA = '{"type": "integer"}'


def asking(sampling: Mapping[str, Any] | None = None, **fields: Any) -> pb.GenerateRequest:  # noqa: ANN401
    if "text" not in fields:
        fields["tokenized"] = pb.TokenizedInput(input_ids=[5, 6, 7])
    return pb.GenerateRequest(sampling_params=pb.SamplingParams(**(sampling or {})), **fields)


def says_all(tokens: tuple[int, ...], finish: FinishReason = LENGTH) -> FakeDoor:
    return FakeDoor(lambda request, leg: says(tokens, finish, cached=2))


def test_what_is_not_said_is_left_to_the_defaults() -> None:
    assert fields_of(completion_of(asking())) == NOTHING_SAID
    assert completion_of(asking(text="the cat"))["prompt"] == "the cat"


def test_every_field_of_a_request_reaches_its_completion() -> None:
    sampling = {
        "temperature": 0.5,
        "top_p": 0.75,
        "top_k": 4,
        "min_p": 0.125,
        "frequency_penalty": -0.5,
        "presence_penalty": 0.5,
        "repetition_penalty": 1.25,
        "max_tokens": 7,
        "min_tokens": 2,
        "stop": ["x", "y"],
        "stop_token_ids": [5, 6],
        "skip_special_tokens": True,
        "ignore_eos": True,
        "n": 2,
        "logprobs": 3,
        "prompt_logprobs": 1,
        "seed": -7,
        "include_stop_str_in_output": True,
        "logit_bias": {3: -2.5},
        "truncate_prompt_tokens": 9,
    }
    params = '{"do_remote_decode": true, "a": [0.5, null]}'
    request = asking(
        {**sampling, "regex": "a+"}, request_id="r", kv_transfer_params_json=params
    )
    assert completion_of(request) == {
        "prompt": [5, 6, 7],
        "request_id": "r",
        "return_token_ids": True,
        "kv_transfer_params": {"do_remote_decode": True, "a": [0.5, None]},
        **sampling,
        "logit_bias": {"3": -2.5},
        "structured_outputs": {"regex": "a+"},
    }


@pytest.mark.parametrize(
    "said",
    [
        *({name: 0} for name in ("temperature", "max_tokens", "logprobs", "prompt_logprobs")),
        {"seed": 0},
        {"logprobs": -1},
        {"truncate_prompt_tokens": -1},
    ],
)
def test_a_zero_that_was_said_is_no_default(said: dict[str, int]) -> None:
    assert fields_of(completion_of(asking(said))) == {**NOTHING_SAID, **said}


@pytest.mark.parametrize(
    ("constraint", "grammar"),
    [
        ({"json_schema": SCHEMA}, Grammar("json_schema", SCHEMA)),
        ({"regex": "[0-9]"}, Grammar("regex", "[0-9]")),
        ({"choice": {"choices": ["a", "b"]}}, Grammar("choice", '["a","b"]')),
        ({"grammar": 'start: "a"'}, Grammar("ebnf", 'start: "a"')),
        ({"json_object": True}, Grammar("json_object")),
    ],
)
async def test_a_constraint_holds_the_answer(
    constraint: dict[str, Any], grammar: Grammar
) -> None:
    door = saying("1")
    async with serving(door) as caller:
        await caller.engine(asking(constraint))
    assert door.request.sampling.grammar == grammar


async def test_a_request_without_a_limit_has_the_context_s() -> None:
    door = saying("the dog")
    async with serving(door) as caller:
        await caller.engine(asking())
        await caller.engine(asking({"max_tokens": 4}))
    assert [one.sampling.max_tokens for one, _ in door.asked] == [CONTEXT - 3, 4]


async def test_token_ids_need_no_tokenizer() -> None:
    model = replace(served(context=CONTEXT), codec=None, vocab_size=300)
    async with serving(says_all((7, 8)), model) as caller:
        (said,) = await caller.engine(asking())
        ended = await refusal(caller.engine(asking({"stop": ["x"]})))
    assert list(said.complete.output_ids) == [7, 8]
    assert ended.code is grpc.StatusCode.UNIMPLEMENTED


REFUSED: dict[str, pb.GenerateRequest] = {
    "mm_inputs": asking(mm_inputs=b"a"),
    "media_refs": asking(media_refs=b"a"),
    "extra_mm_inputs": asking(extra_mm_inputs=[b"a"]),
    "temperature": asking({"temperature": nan}),
    "logit_bias": asking({"logit_bias": {-1: 1.0}}),
    "logprobs": asking({"logprobs": 21}),
    "max_tokens": asking({"max_tokens": 0}),
    "min_tokens": asking({"min_tokens": 2**32 - 1}),
    "truncate_prompt_tokens": asking({"truncate_prompt_tokens": -2}),
    "structured_outputs": asking({"choice": {}}),
    "sampling_params: field 99": pb.GenerateRequest(
        sampling_params=pb.SamplingParams.FromString(NEWER)
    ),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_refused_field_is_named_and_its_kv_given_up(name: str) -> None:
    request = pb.GenerateRequest.FromString(REFUSED[name].SerializeToString())
    request.kv_transfer_params_json = msgspec.json.encode(to_params(TICKET)).decode()
    door = saying("the dog")
    async with serving(door) as caller:
        ended = await refusal(caller.engine(request))
        assert [leg.ticket for leg in caller.declined] == [TICKET]
    assert ended.code is grpc.StatusCode.INVALID_ARGUMENT
    assert name in ended.why
    assert not door.asked


@pytest.mark.parametrize(
    "params",
    ["[]", "null", "{", '{"do_remote_prefill": true}', '{"a":' * 2_000 + "1" + "}" * 2_000],
)
async def test_params_that_are_none_are_refused(params: str) -> None:
    async with serving(saying("the dog")) as caller:
        ended = await refusal(caller.engine(asking(kv_transfer_params_json=params)))
        assert caller.declined == []
    assert ended.code is grpc.StatusCode.INVALID_ARGUMENT
    assert "kv_transfer_params" in ended.why


@pytest.mark.parametrize("space", ["", " " * 40_000])
async def test_however_deep_its_params_are_a_request_is_answered_or_refused(space: str) -> None:
    """In a thread if it is large."""
    ends = set[grpc.StatusCode]()
    async with serving(saying("the dog")) as caller:
        for depth in range(450, 550):
            params = '{"a":' * depth + "1" + "}" * depth + space
            try:
                await caller.engine(asking(kv_transfer_params_json=params))
                ends.add(grpc.StatusCode.OK)
            except grpc.aio.AioRpcError as error:
                ends.add(error.code())
    assert ends == {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT}


async def test_params_in_the_older_field_are_refused() -> None:
    async with serving(saying("the dog")) as caller:
        ended = await refusal(caller.engine(asking(kv_transfer_params=b"a")))
    assert ended.code is grpc.StatusCode.INVALID_ARGUMENT
    assert "kv_transfer_params" in ended.why


async def test_a_whole_answer_is_one_reply() -> None:
    async with serving(says_all(CAT)) as caller:
        (said,) = await caller.engine(asking())
    assert said.complete == pb.GenerateComplete(
        output_ids=CAT,
        finish_reason="length",
        prompt_tokens=3,
        completion_tokens=3,
        cached_tokens=2,
    )


async def test_a_stream_s_chunks_are_new_tokens_and_its_end_repeats_the_last() -> None:
    async with serving(says_all(CAT)) as caller:
        *chunks, end = await caller.engine(asking(stream=True))
    assert [one.chunk for one in chunks] == [
        pb.GenerateStreamChunk(
            token_ids=[token], prompt_tokens=3, completion_tokens=1, cached_tokens=2
        )
        for token in CAT
    ]
    assert list(end.complete.output_ids) == [CAT[-1]]
    assert end.complete.completion_tokens == len(CAT)


@pytest.mark.parametrize("stream", [False, True])
async def test_several_answers_have_their_indexes(*, stream: bool) -> None:
    async with serving(says_all(CAT)) as caller:
        said = await caller.engine(asking({"n": 2}, stream=stream))
    ends = [one.complete for one in said if one.HasField("complete")]
    assert sorted(one.index for one in ends) == [0, 1]
    assert {tuple(one.output_ids) for one in ends} == {CAT[-1:] if stream else CAT}
    chunks = [one.chunk.index for one in said if one.HasField("chunk")]
    assert sorted(chunks) == ([0, 0, 0, 1, 1, 1] if stream else [])


@pytest.mark.parametrize(
    ("finish", "reason", "stop", "expected"),
    [
        (LENGTH, None, [], {"finish_reason": "length"}),
        (STOP, None, [], {"finish_reason": "stop"}),
        (STOP, CAT[-1], [], {"finish_reason": "stop", "matched_token_id": CAT[-1]}),
        (LENGTH, None, ["at"], {"finish_reason": "stop", "matched_stop_str": "at"}),
    ],
)
async def test_why_an_answer_ended(
    finish: FinishReason, reason: int | None, stop: list[str], expected: dict[str, Any]
) -> None:
    door = FakeDoor(lambda request, leg: says(CAT, finish, stop_reason=reason))
    async with serving(door) as caller:
        (said,) = await caller.engine(asking({"stop": stop}))
    tokens = CAT[:2] if stop else CAT
    assert said.complete == pb.GenerateComplete(
        output_ids=tokens, completion_tokens=len(tokens), prompt_tokens=3, **expected
    )


async def test_a_prefill_leg_tells_where_its_kv_is() -> None:
    events: list[Event] = [PromptEvent(0), TicketEvent(TICKET), TokenEvent((CAT[0],), LENGTH)]
    door = FakeDoor(lambda request, leg: events)
    held = msgspec.json.encode(dict(HOLD)).decode()
    async with serving(door) as caller:
        (said,) = await caller.engine(asking({"max_tokens": 1}, kv_transfer_params_json=held))
        verbatim = said.complete.kv_transfer_params_json
        (after,) = await caller.engine(asking(kv_transfer_params_json=verbatim))
    (_, first), (_, second) = door.asked
    assert first.hold
    assert second.ticket == TICKET
    assert not after.complete.HasField("kv_transfer_params_json")


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_of_tokens_and_of_the_likeliest_beside_them(*, stream: bool) -> None:
    def place(token: int) -> tuple[Logprob, ...]:
        return Logprob(token, -0.5, 2), Logprob(12, -0.25, 1), Logprob(token, -0.5, 2)

    events: list[Event] = [
        PromptEvent(0, (place(6), place(7))),
        *(TokenEvent((token,), None, None, (place(token),)) for token in CAT[:-1]),
        TokenEvent(CAT[-1:], LENGTH, None, (place(CAT[-1]),)),
    ]
    async with serving(FakeDoor(lambda request, leg: events)) as caller:
        said = await caller.engine(asking({"logprobs": 2, "prompt_logprobs": 2}, stream=stream))
    parts: Any = [one.chunk for one in said[:-1]] if stream else [said[0].complete]
    prompt, *later = [part.input_logprobs for part in parts]
    assert [one.HasField("value") for one in prompt.token_logprobs] == [False, True, True]
    assert list(prompt.token_ids) == [5, 6, 7]
    assert [list(one.token_ids) for one in prompt.top_logprobs] == [[], [12, 6], [12, 7]]
    assert not any(one.token_ids for one in later)
    told = [part.output_logprobs for part in parts]
    assert tuple(token for one in told for token in one.token_ids) == CAT
    assert [number for one in told for number in one.token_logprobs] == [-0.5] * 3
    tops = [top for one in told for top in one.top_logprobs]
    assert [list(top.token_ids) for top in tops] == [[12, token] for token in CAT]
    assert [list(top.values) for top in tops] == [[-0.25, -0.5]] * 3
