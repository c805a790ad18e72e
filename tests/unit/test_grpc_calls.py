"""How gRPC calls end before their time: by a failure, by their client, by another call."""

import asyncio
from typing import Any

import grpc
import msgspec
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from api.door.limiter import LARGEST_BODY
from api.generator import (
    Event,
    Leg,
    NodeLeaving,
    RequestRefused,
    StreamFailed,
)
from api.grpc.protos import control_pb2, vllm_engine_pb2
from api.grpc.server import CONTROL, INFERENCE, VLLM_ENGINE
from kv_transfer.ticket import KvTicket, to_params
from tests.fakes.grpc_server import (
    CONTEXT,
    Caller,
    Refused,
    asking,
    reason,
    refusal,
    rest,
    serving,
)
from tests.fakes.text import FakeDoor, OneToken, Waiting, byte_level, saying, says

CAT = byte_level().encode("the cat sat")
TICKET = KvTicket("t", "e", "h", 21001, "f", relayed={"remote_block_ids": [[]]})
BY_NAME = "___prefill_addr_p:1___decode_addr_h:2_1"
LEG = msgspec.json.encode(to_params(TICKET)).decode()


async def abort(caller: Caller, *names: str, service: Any = CONTROL) -> None:  # noqa: ANN401
    kind = control_pb2 if service is CONTROL else vllm_engine_pb2
    await caller.call("Abort", kind.AbortRequest(request_ids=names), service)


async def test_a_model_that_is_not_here_is_not_found() -> None:
    async with serving(saying("the dog")) as caller:
        ended = await refusal(caller.generate(asking(model="other")))
    why = "The model `other` does not exist."
    assert ended == Refused(grpc.StatusCode.NOT_FOUND, why)


async def test_a_long_message_is_no_longer_than_a_header_may_be() -> None:
    async with serving(saying("the dog")) as caller:
        ended = await refusal(caller.generate(asking(model="🚀" * 3_000)))
    assert ended.code is grpc.StatusCode.NOT_FOUND


async def test_a_prompt_that_is_too_long_is_invalid_and_its_kv_given_up() -> None:
    request = vllm_engine_pb2.GenerateRequest(
        tokenized={"input_ids": [5] * (CONTEXT + 1)}, kv_transfer_params_json=LEG
    )
    async with serving(saying("the dog")) as caller:
        ended = await refusal(caller.engine(request))
        assert [leg.ticket for leg in caller.declined] == [TICKET]
    assert ended.code is grpc.StatusCode.INVALID_ARGUMENT
    assert "maximum context length" in ended.why


@pytest.mark.parametrize(
    ("request_", "choices"),
    [
        (asking(request_id=BY_NAME, model="other"), 1),
        (asking(request_id=BY_NAME, model="other", sampling={"num_sequences": 2}), 2),
        (asking(request_id=BY_NAME, media=[b"a"], sampling={"num_sequences": 2}), 2),
        (vllm_engine_pb2.GenerateRequest(request_id=BY_NAME, sampling_params={"n": 2}), 2),
        (vllm_engine_pb2.GenerateRequest(request_id=BY_NAME, media_refs=b"a"), 1),
    ],
)
async def test_kv_that_a_refused_request_s_id_names_is_given_up(
    request_: Message, choices: int
) -> None:
    """As vLLM's XpYd proxy names it; see test_refused_legs.py for HTTP."""
    engine = isinstance(request_, vllm_engine_pb2.GenerateRequest)
    name, service = ("Generate", VLLM_ENGINE) if engine else ("GenerateStream", INFERENCE)
    async with serving(saying("the dog")) as caller:
        await refusal(rest(caller.call(name, request_, service)))
        assert caller.declined == [
            Leg(ticket=KvTicket(f"{BY_NAME}#{index}", None, "p", 1, None))
            for index in range(choices)
        ]


@pytest.mark.parametrize(
    ("failure", "code", "declined"),
    [
        (NodeLeaving("it stops"), grpc.StatusCode.UNAVAILABLE, 0),
        (StreamFailed("it broke"), grpc.StatusCode.UNAVAILABLE, 0),
        (RequestRefused("it cannot be", "prompt"), grpc.StatusCode.INVALID_ARGUMENT, 1),
    ],
)
@pytest.mark.parametrize("begun", [False, True])
async def test_what_fails_ends_the_call_with_a_status(
    failure: StreamFailed, code: grpc.StatusCode, declined: int, *, begun: bool
) -> None:
    events: list[Event | StreamFailed] = [failure]
    door = FakeDoor(lambda request, leg: [*says(CAT)[:2], *events] if begun else events)
    request = vllm_engine_pb2.GenerateRequest(
        text="the cat", stream=True, kv_transfer_params_json=LEG
    )
    async with serving(door) as caller:
        call = caller.call("Generate", request, VLLM_ENGINE)
        if begun:
            assert (await call.read()).chunk.token_ids
        ended = await refusal(rest(call))
        assert len(caller.declined) == declined
        assert len(caller.running) == 0
    assert ended.code is code
    assert str(failure) in ended.why
    assert door.opened == door.closed == 1


@pytest.mark.parametrize("whole", [False, True])
async def test_a_client_that_cancels_closes_its_stream(*, whole: bool) -> None:
    door = OneToken()
    async with serving(door) as caller, asyncio.timeout(10):
        call = caller.call("Generate" if whole else "GenerateStream", asking())
        begun = asyncio.ensure_future(call) if whole else None
        await door.waits.wait()
        assert len(caller.running) == 1
        call.cancel()
        await door.closed.wait()
        if begun is not None:
            await asyncio.wait([begun])
        assert len(caller.running) == 0


@pytest.mark.parametrize(
    "method", [*INFERENCE.methods[:2], VLLM_ENGINE.methods_by_name["Generate"]]
)
async def test_a_deadline_that_passes_closes_its_stream(method: MethodDescriptor) -> None:
    door = OneToken()
    asked = GetMessageClass(method.input_type)(text="the cat")
    async with serving(door) as caller, asyncio.timeout(10):
        call = caller.method(method)(asked, timeout=1.0)
        ended = await refusal(rest(call) if method.server_streaming else call)
        await door.closed.wait()
    assert ended.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert len(caller.running) == 0


@pytest.mark.parametrize("service", [CONTROL, VLLM_ENGINE])
async def test_an_abort_ends_the_calls_of_its_id_and_no_others(service: Any) -> None:  # noqa: ANN401
    door = Waiting()
    two = vllm_engine_pb2.GenerateRequest(request_id="two", text="a", stream=True)
    async with serving(door) as caller, asyncio.timeout(10):
        calls = {
            name: caller.call(method, request, kind)
            for name, method, request, kind in (
                ("one", "GenerateStream", asking(request_id="one"), INFERENCE),
                ("other", "GenerateStream", asking(request_id="other"), INFERENCE),
                ("two", "Generate", two, VLLM_ENGINE),
                ("", "GenerateStream", asking(), INFERENCE),
            )
        }
        for call in calls.values():
            await call.read()
        await abort(caller, "one", "two", "nobody", "", service=service)
        assert [reason(one) for one in await rest(calls["one"])] == ["ABORTED"]
        assert [reason(one) for one in await rest(calls["two"])] == ["abort"]
        assert door.open == len(caller.running) == 2
        door.go.set()
        assert [reason(one) for one in await rest(calls["other"])] == ["LENGTH"]
        assert [reason(one) for one in await rest(calls[""])] == ["LENGTH"]
        assert len(caller.running) == 0


async def test_an_abort_ends_all_choices_and_all_calls_of_an_id() -> None:
    door = Waiting()
    async with serving(door) as caller, asyncio.timeout(10):
        requests = (
            asking(request_id="r", sampling={"num_sequences": 2}),
            asking(request_id="r"),
        )
        calls = [caller.call("GenerateStream", request) for request in requests]
        for call, choices in zip(calls, (2, 1), strict=True):
            for _ in range(choices):
                await call.read()
        await abort(caller, "r", "r")
        await abort(caller, "r")
        for call in calls:
            assert [reason(one) for one in await rest(call)] == ["ABORTED"]
        assert door.open == len(caller.running) == 0


async def test_an_abort_ends_a_call_that_waits_for_the_whole() -> None:
    door = OneToken()
    async with serving(door) as caller, asyncio.timeout(10):
        call = asyncio.ensure_future(caller.generate(asking(request_id="r")))
        await door.waits.wait()
        await abort(caller, "r")
        assert reason(await call) == "ABORTED"
        assert door.closed.is_set()


async def test_a_larger_body_than_the_limit_is_refused() -> None:
    async with serving(saying("the dog")) as caller:
        ended = await refusal(caller.generate(asking(text="a" * LARGEST_BODY)))
        assert (await caller.generate(asking())).outputs.text == "the dog"
    assert ended.code is grpc.StatusCode.RESOURCE_EXHAUSTED
