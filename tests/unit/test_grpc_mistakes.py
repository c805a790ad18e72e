"""A gRPC call that ends by a mistake: the log tells of ours, the status of a client's."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

import grpc
import pytest
from google.protobuf.message import Message

from api.grpc.calls import Context
from api.grpc.mistakes import OUR_MISTAKE, guarded_stream
from api.grpc.protos.inference_pb2 import GenerateRequest
from api.grpc.server import VLLM_ENGINE
from tests.fakes.grpc_server import FACTS, Refused, asking, refusal, rest, serving
from tests.fakes.text import FakeDoor, saying


def raised(error: Exception) -> Any:  # noqa: ANN401  it returns nothing
    raise error


@pytest.mark.parametrize("whole", [False, True])
async def test_a_mistake_of_ours_ends_the_call_and_only_the_log_says_which(
    caplog: pytest.LogCaptureFixture, *, whole: bool
) -> None:
    bugs: list[Any] = [RuntimeError("a bug")]
    door = FakeDoor(lambda request, leg: [*map(raised, bugs)])
    async with serving(door) as caller:
        call = caller.call("Generate" if whole else "GenerateStream", asking(request_id="r"))
        ended = await refusal(call if whole else rest(call))
        assert len(caller.running) == 0
    assert ended == Refused(grpc.StatusCode.INTERNAL, OUR_MISTAKE)
    assert door.closed == 1
    [record] = caplog.records
    assert "request_id=r" in record.getMessage()
    assert record.exc_info
    assert record.exc_info[1] is bugs[0]


async def test_a_mistake_of_ours_ends_a_call_that_asks_for_facts() -> None:
    facts = replace(FACTS, load=lambda: raised(RuntimeError("a bug")))
    async with serving(saying("the dog"), facts=facts) as caller:
        ended = await refusal(caller.ask("GetLoads", VLLM_ENGINE))
    assert ended == Refused(grpc.StatusCode.INTERNAL, OUR_MISTAKE)


async def test_a_refusal_is_nothing_for_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(saying("the dog")) as caller:
        for call in (caller.generate(asking(model="no")), caller.stream(asking(model="no"))):
            assert (await refusal(call)).code is grpc.StatusCode.NOT_FOUND
    assert caplog.records == []


async def test_who_leaves_a_stream_has_closed_it() -> None:
    closed = asyncio.Event()

    async def replies(request: Message, _context: Context) -> AsyncGenerator[Message]:
        try:
            while True:
                yield request
        finally:
            closed.set()

    stream = guarded_stream(replies, GenerateRequest)(b"", cast("Context", None))
    async with aclosing(stream):
        await anext(stream)
    assert closed.is_set()


@pytest.mark.parametrize("data", [b"\x0a\x05a", b"\x0a\x01\xff", b"\xff" * 9])
@pytest.mark.parametrize("method", ["Inference/Generate", "Inference/GenerateStream"])
async def test_a_message_that_is_none_is_its_client_s_mistake(
    method: str, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(saying("the dog")) as caller:
        channel: Any = caller.channel
        ended = await refusal(channel.unary_unary(f"/vllm.{method}")(data))
    assert ended.code is grpc.StatusCode.INVALID_ARGUMENT
    assert "vllm.GenerateRequest" in ended.why
    assert caplog.records == []
