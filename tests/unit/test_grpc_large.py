"""Large gRPC requests do not delay other calls: what is too long is not read, and the rest is
read in a thread.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

import grpc
import pytest
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from api.endpoints import TextEndpoints
from api.grpc.calls import Completions, Context, RunningCalls, copy_ids
from api.grpc.inference import ANSWERS
from api.grpc.protos import inference_pb2, vllm_engine_pb2
from api.grpc.server import INFERENCE, VLLM_ENGINE
from tests.fakes.grpc_server import CONTEXT, asking, refusal, rest, serving
from tests.fakes.text import saying, served

Asks = Callable[..., Message]
FAR = [5] * 3_000


def inference(ids: list[int], truncated_to: int = 0) -> Message:
    return inference_pb2.GenerateRequest(
        token_ids={"ids": ids}, truncate_prompt_tokens=truncated_to
    )


def vllm_engine(ids: list[int], truncated_to: int = 0) -> Message:
    sampling = {"truncate_prompt_tokens": truncated_to} if truncated_to else None
    return vllm_engine_pb2.GenerateRequest(
        tokenized={"input_ids": ids}, sampling_params=sampling
    )


@pytest.mark.parametrize(
    ("asks", "method", "service"),
    [(inference, "GenerateStream", INFERENCE), (vllm_engine, "Generate", VLLM_ENGINE)],
)
class TestTokenIds:
    """Of prompts that are far longer than the context."""

    async def test_they_are_not_even_read(
        self, asks: Asks, method: str, service: ServiceDescriptor
    ) -> None:
        async with serving(saying("the dog")) as caller:
            ended = await refusal(rest(caller.call(method, asks(FAR), service)))
        assert ended.code is grpc.StatusCode.INVALID_ARGUMENT
        assert f"maximum context length is {CONTEXT} tokens" in ended.why
        assert "more than twice as many" in ended.why

    @pytest.mark.parametrize("most", [3, CONTEXT - 50])
    async def test_the_last_are_read_of_those_that_are_truncated(
        self,
        most: int,
        asks: Asks,
        method: str,
        service: ServiceDescriptor,
    ) -> None:
        ids = [*FAR, *range(1, 250)]
        door = saying("the dog")
        async with serving(door) as caller:
            await rest(caller.call(method, asks(ids, most), service))
        assert door.request.prompt == tuple(ids[-most:])

    async def test_and_truncated_to_more_than_the_context_they_are_too_many(
        self,
        asks: Asks,
        method: str,
        service: ServiceDescriptor,
    ) -> None:
        async with serving(saying("the dog")) as caller:
            ended = await refusal(rest(caller.call(method, asks(FAR, CONTEXT + 1), service)))
        assert ended.code is grpc.StatusCode.INVALID_ARGUMENT
        assert f"maximum context length is {CONTEXT} tokens" in ended.why


def test_of_far_more_ids_than_the_context_has_room_for_few_are_copied() -> None:
    ids = range(200)
    assert copy_ids(ids, 10, truncates=True) == [*range(180, 200)]
    assert copy_ids(ids, 100, truncates=True) == [*ids]
    assert copy_ids(ids, None, truncates=False) == [*ids]


@pytest.mark.parametrize(("size", "in_thread"), [(10, False), (10_000, False), (100_000, True)])
async def test_a_large_request_is_read_in_a_thread_also_where_it_is_refused(
    size: int, *, in_thread: bool
) -> None:
    threads, given_up = list[bool](), list[Mapping[str, object]]()

    def note(*_given: object) -> dict[str, object]:
        threads.append(threading.current_thread() is not threading.main_thread())
        return {"prompt": ""}

    async def give_up(named: Mapping[str, object]) -> None:
        given_up.append(named)

    class Ended(Exception):
        pass

    class Answered:
        async def abort(self, code: grpc.StatusCode, why: str) -> None:
            raise Ended(code, why)

    texts = TextEndpoints(saying("the dog"), served(context=CONTEXT))
    completions = Completions(texts, give_up, RunningCalls())
    form = replace(ANSWERS, completion_of=note, kv_named_by=note)
    request, context = asking(text="a" * size), cast("Context", Answered())
    with pytest.raises(Ended):
        async with completions.answered(request, form, context):
            raise AssertionError("an empty prompt is refused")
    assert threads == [in_thread] * 2
    assert given_up == [{"prompt": ""}]
