"""What vllm.Inference answers: text, tokens, log-probabilities, and why an answer ended."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import grpc
import pytest

from api.generator import WHOLE, Event, Leg, PromptEvent, Tap, TicketEvent, TokenEvent
from api.grpc.protos import inference_pb2 as pb
from engine.request import FinishReason, Logprob, Request
from kv_transfer.ticket import HOLD, KvTicket
from tests.fakes.grpc_server import CONTEXT, asking, refusal, serving
from tests.fakes.text import FakeDoor, byte_level, says, served

CAT = byte_level().encode("the cat sat")
LENGTH, STOP = FinishReason.LENGTH, FinishReason.STOP
TICKET = KvTicket("t", "e", "h", 21001, "f", lease_s=2.5, relayed={"remote_block_ids": [[]]})


def says_all(tokens: tuple[int, ...], finish: FinishReason = STOP) -> FakeDoor:
    return FakeDoor(lambda request, leg: says(tokens, finish))


def with_leg(params: dict[str, Any], **fields: Any) -> pb.GenerateRequest:  # noqa: ANN401
    request = asking(**fields)
    request.kv.kv_transfer_params.update(params)
    return request


async def test_text_or_tokens_are_told_as_asked() -> None:
    async with serving(says_all(CAT, LENGTH)) as caller:
        both = await caller.generate(
            asking(response={"output_token_ids": True, "prompt_token_ids": True})
        )
        tokens = await caller.generate(
            asking(response={"output_text": False, "output_token_ids": True})
        )
        text = await caller.generate(asking())
    assert both.outputs.text == text.outputs.text == "the cat sat"
    assert tuple(both.outputs.token_ids) == tuple(tokens.outputs.token_ids) == CAT
    assert tuple(both.prompt_info.token_ids) == byte_level().encode("the cat")
    assert tokens.outputs.text == ""
    assert not text.outputs.token_ids
    assert not text.prompt_info.token_ids
    assert tokens.outputs.num_tokens == text.outputs.num_tokens == len(CAT)


async def test_who_wants_tokens_alone_needs_no_tokenizer() -> None:
    model = replace(served(context=CONTEXT), codec=None, vocab_size=300)
    request = pb.GenerateRequest(
        token_ids={"ids": [5]}, response={"output_text": False, "output_token_ids": True}
    )
    async with serving(says_all((7, 8), LENGTH), model) as caller:
        said = await caller.generate(request)
        ended = await refusal(caller.generate(asking()))
    assert list(said.outputs.token_ids) == [7, 8]
    assert ended.code is grpc.StatusCode.UNIMPLEMENTED


async def test_a_stream_s_pieces_are_new_ones_and_the_prompt_is_told_once() -> None:
    async with serving(says_all(CAT, LENGTH)) as caller:
        said = await caller.stream(asking(response={"output_token_ids": True}))
    assert [one.HasField("prompt_info") for one in said] == [True, False, False]
    assert [tuple(one.outputs.token_ids) for one in said] == [(token,) for token in CAT]
    assert "".join(one.outputs.text for one in said) == "the cat sat"
    assert [one.outputs.num_tokens for one in said] == [1, 1, 1]
    assert [one.outputs.HasField("finish_info") for one in said] == [False, False, True]
    assert said[-1].outputs.finish_info.num_output_tokens == len(CAT)


@pytest.mark.parametrize(
    ("finish", "reason", "stop", "expected"),
    [
        (LENGTH, None, [], {"finish_reason": pb.FinishInfo.LENGTH}),
        (STOP, None, [], {"finish_reason": pb.FinishInfo.STOP, "eos_token_id": CAT[-1]}),
        (STOP, CAT[-1], [], {"finish_reason": pb.FinishInfo.STOP, "stop_token_id": CAT[-1]}),
        (LENGTH, None, ["at"], {"finish_reason": pb.FinishInfo.STOP, "stop_string": "at"}),
    ],
)
async def test_why_an_answer_ended(
    finish: FinishReason, reason: int | None, stop: list[str], expected: dict[str, Any]
) -> None:
    door = FakeDoor(lambda request, leg: says(CAT, finish, cached=1, stop_reason=reason))
    async with serving(door) as caller:
        said = await caller.generate(asking(stopping={"stop_strings": stop}))
    length = 2 if stop else len(CAT)
    assert said.outputs.finish_info == pb.FinishInfo(
        num_output_tokens=length, num_cached_tokens=1, **expected
    )


async def test_several_answers_have_their_indexes() -> None:
    door = says_all(CAT, LENGTH)
    async with serving(door) as caller:
        said = await caller.stream(asking(sampling={"num_sequences": 3}))
    assert sorted({one.outputs.index for one in said}) == [0, 1, 2]
    ends = [one.outputs.finish_info for one in said if one.outputs.HasField("finish_info")]
    assert [one.num_output_tokens for one in ends] == [len(CAT)] * 3
    assert [one.HasField("prompt_info") for one in said].count(True) == 1
    assert sorted(one.sampling.sample_index for one, _ in door.asked) == [0, 1, 2]


async def test_a_prefill_leg_tells_where_its_kv_is() -> None:
    events: list[Event] = [PromptEvent(0), TicketEvent(TICKET), TokenEvent((CAT[0],), LENGTH)]
    door = FakeDoor(lambda request, leg: events)
    async with serving(door) as caller:
        said = await caller.generate(with_leg(dict(HOLD), stopping={"max_new_tokens": 1}))
        request = asking()
        request.kv.kv_transfer_params.CopyFrom(said.outputs.finish_info.kv_transfer_params)
        await caller.generate(request)
    (_, held), (_, fetched) = door.asked
    assert held.hold
    assert fetched.ticket == TICKET


def place(token: int, *likeliest: int) -> tuple[Logprob, ...]:
    tops = [Logprob(top, -0.25 * rank, rank) for rank, top in enumerate(likeliest, 1)]
    return (Logprob(token, -0.5, 2), *tops)


async def test_logprobs_and_ranks_of_tokens_and_of_the_likeliest_beside_them() -> None:
    prompt, answer = place(9, 11, 9), place(CAT[0], 12, CAT[0])
    events: list[Event] = [
        PromptEvent(0, (prompt,)),
        TokenEvent((CAT[0],), LENGTH, None, (answer,)),
    ]
    async with serving(FakeDoor(lambda request, leg: events)) as caller:
        said = await caller.generate(
            asking(
                response={"prompt_candidates": {"top_n": 2}, "output_candidates": {"top_n": 2}}
            )
        )
    for told, first, second in ((said.prompt_info, 11, 9), (said.outputs, 12, CAT[0])):
        assert list(told.logprobs) == [-0.5]
        assert list(told.ranks) == [2]
        info = pb.CandidateTokenInfo.TokenInfo
        likeliest = [
            info(id=first, logprob=-0.25, rank=1),
            info(id=second, logprob=-0.5, rank=2),
        ]
        assert list(told.candidate_tokens) == [pb.CandidateTokenInfo(tokens=likeliest)]


async def test_logprobs_without_candidates() -> None:
    events: list[Event] = [
        PromptEvent(0),
        TokenEvent((CAT[0],), LENGTH, None, (place(CAT[0]),)),
    ]
    async with serving(FakeDoor(lambda request, leg: events)) as caller:
        said = await caller.generate(asking(response={"output_logprobs": True}))
    assert list(said.outputs.logprobs) == [-0.5]
    assert not said.outputs.candidate_tokens


async def test_the_prompt_is_told_once_it_is_known_whichever_answer_begins() -> None:
    """Its log-probabilities come with the first of several answers, which may be the last."""
    told, begun = place(9), asyncio.Event()

    class Slow:
        async def stream(
            self, request: Request, leg: Leg = WHOLE, tap: Tap | None = None
        ) -> AsyncGenerator[Event]:
            if request.sampling.sample_index:
                yield PromptEvent(0)
                yield TokenEvent((CAT[0],))
                begun.set()
                yield TokenEvent((CAT[1],), LENGTH)
            else:
                await begun.wait()
                yield PromptEvent(0, (told,))
                yield TokenEvent((CAT[0],), LENGTH)

    async with serving(Slow()) as caller:
        said = await caller.stream(
            asking(sampling={"num_sequences": 2}, response={"prompt_logprobs": True})
        )
    assert [one.HasField("prompt_info") for one in said] == [True, False, False]
    assert list(said[0].prompt_info.logprobs) == [-0.5]
    assert [one.outputs.index for one in said] == [1, 1, 0]
