"""Routers that speak gRPC drive our nodes: the prompt on one, the answer on the other."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from api.grpc.protos import control_pb2, inference_pb2, kv_events_pb2, vllm_engine_pb2
from tests.e2e.cluster import MODEL, MOVED, Running, gone, running, tokens_of
from tests.fakes.driver import prompt

ANSWER, BLOCK = 10, 16
PROMPTS = [prompt(length) for length in (1, 16, 33, 70)]
HELD = {"do_remote_decode": True, "do_remote_prefill": False}
HELD_JSON = '{"do_remote_decode":true,"do_remote_prefill":false}'
LISTENS = re.compile(r"^\s*(?P<name>\S+) .* gRPC at (?P<address>\S+)$")
Reply = TypeVar("Reply", bound=Message)


def ask(
    channel: grpc.aio.Channel, path: str, request: Message, kind: type[Reply]
) -> "grpc.aio.UnaryUnaryCall[Any, Reply]":
    """A call with one reply."""
    return channel.unary_unary(
        path,
        request_serializer=type(request).SerializeToString,
        response_deserializer=kind.FromString,
    )(request)


def stream(
    channel: grpc.aio.Channel, path: str, request: Message, kind: type[Reply]
) -> "grpc.aio.UnaryStreamCall[Any, Reply]":
    """A call with several."""
    return channel.unary_stream(
        path,
        request_serializer=type(request).SerializeToString,
        response_deserializer=kind.FromString,
    )(request)


@asynccontextmanager
async def channels(
    folder: Path, **settings: object
) -> AsyncGenerator[tuple[Running, grpc.aio.Channel, grpc.aio.Channel]]:
    """A cluster whose nodes listen for gRPC, and a channel to the node of each kind."""
    async with running(folder, node_options=("--grpc-port=0",), **settings) as cluster:
        found = [match for line in cluster.lines if (match := LISTENS.match(line))]
        addresses = {one["name"].partition("-")[0]: one["address"] for one in found}
        assert addresses.keys() == {"prefill", "decode"}, cluster.lines
        async with (
            grpc.aio.insecure_channel(addresses["prefill"]) as prefill,
            grpc.aio.insecure_channel(addresses["decode"]) as decode,
        ):
            yield cluster, prefill, decode


async def by_inference(
    prefill: grpc.aio.Channel, decode: grpc.aio.Channel, tokens: Sequence[int]
) -> list[int]:
    """As vLLM's router and Dynamo's sidecar do it; numbers of params become floats."""
    asked = inference_pb2.GenerateRequest(
        request_id=f"i{len(tokens)}",
        model=MODEL,
        token_ids=inference_pb2.TokenIds(ids=tokens),
        temperature=0,
        stopping=inference_pb2.StoppingCriteria(max_new_tokens=1, ignore_eos=True),
        response=inference_pb2.ResponseOptions(output_token_ids=True),
    )
    asked.kv.cache_salt = "inference"
    asked.kv.kv_transfer_params.update(HELD)
    path, kind = "/vllm.Inference/Generate", inference_pb2.GenerateResponse
    first = await ask(prefill, path, asked, kind)
    asked.kv.kv_transfer_params.CopyFrom(first.outputs.finish_info.kv_transfer_params)
    asked.stopping.max_new_tokens = ANSWER
    replies = stream(decode, "/vllm.Inference/GenerateStream", asked, kind)
    return [token async for reply in replies for token in reply.outputs.token_ids]


async def by_vllm_engine(
    prefill: grpc.aio.Channel, decode: grpc.aio.Channel, tokens: Sequence[int]
) -> list[int]:
    """As SMG does it."""
    asked = vllm_engine_pb2.GenerateRequest(
        request_id=f"e{len(tokens)}",
        tokenized=vllm_engine_pb2.TokenizedInput(input_ids=tokens),
        sampling_params=vllm_engine_pb2.SamplingParams(
            temperature=0, max_tokens=1, ignore_eos=True, n=1
        ),
        kv_transfer_params_json=HELD_JSON,
    )
    path, kind = "/vllm.grpc.engine.VllmEngine/Generate", vllm_engine_pb2.GenerateResponse
    (first,) = [reply async for reply in stream(prefill, path, asked, kind)]
    asked.kv_transfer_params_json = first.complete.kv_transfer_params_json
    asked.sampling_params.max_tokens, asked.stream = ANSWER, True
    said = list[int]()
    async for reply in stream(decode, path, asked, kind):
        said += reply.chunk.token_ids
    return said


@pytest.mark.parametrize("by", [by_inference, by_vllm_engine])
async def test_split_is_unsplit(tiny: Path, by: Any) -> None:  # noqa: ANN401  either
    async with channels(tiny) as (cluster, prefill, decode):
        said = await asyncio.gather(*(by(prefill, decode, one) for one in PROMPTS))
        assert max((await cluster.metric(MOVED)).values()) > 0
        await cluster.blocks_come_back()
        [alone] = [node for node in await cluster.nodes() if node["role"] == "decode"]
        door = f"http://{alone['http_address']}"
        whole = [
            tokens_of(await cluster.ask(door, one, max_tokens=ANSWER, cache_salt="whole"))
            for one in PROMPTS
        ]
    assert said == whole


async def test_calls_end_with_their_clients_and_by_their_ids(tiny: Path) -> None:
    async with channels(tiny) as (cluster, _, decode):
        path, kind = "/vllm.Inference/GenerateStream", inference_pb2.GenerateResponse
        calls = [stream(decode, path, endless(name), kind) for name in ("left", "aborted")]
        for call in calls:
            await anext(aiter(call))
        calls[0].cancel()
        abort = control_pb2.AbortRequest(request_ids=["aborted"])
        await ask(decode, "/vllm.Control/Abort", abort, control_pb2.AbortResponse)
        last = await last_of(calls[1])
        assert last.outputs.finish_info.finish_reason == inference_pb2.FinishInfo.ABORTED
        await cluster.blocks_come_back()


async def test_the_calls_of_an_engine_that_dies_end_with_a_status(tiny: Path) -> None:
    async with channels(tiny) as (cluster, _, decode):
        path, kind = "/vllm.Inference/GenerateStream", inference_pb2.GenerateResponse
        call = stream(decode, path, endless("long"), kind)
        await anext(aiter(call))
        door = cluster.door("decode-0")
        os.kill(cluster.engine("decode-0"), signal.SIGKILL)
        with pytest.raises(grpc.aio.AioRpcError, match="the engine process died") as ended:
            await last_of(call)
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        await gone(door)
        assert not [line for line in cluster.lines if "Traceback" in line]


async def test_a_node_that_stops_says_so_and_ends_its_calls_first(tiny: Path) -> None:
    async with channels(tiny, drain_timeout_s=60.0) as (cluster, _, decode):
        path, kind = "/vllm.Inference/GenerateStream", inference_pb2.GenerateResponse
        call = stream(decode, path, endless("long", 150), kind)
        await anext(aiter(call))
        service = health_pb2.HealthCheckRequest(service="vllm.Inference")
        watched = stream(
            decode, "/grpc.health.v1.Health/Watch", service, health_pb2.HealthCheckResponse
        )
        states = aiter(watched)
        assert (await anext(states)).status == health_pb2.HealthCheckResponse.SERVING
        os.kill(cluster.door("decode-0"), signal.SIGTERM)
        assert (await anext(states)).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert (await last_of(call)).outputs.finish_info.num_output_tokens == 150


async def test_a_router_is_told_what_both_nodes_have_cached(tiny: Path) -> None:
    """Prefill computes a prompt, and decode fetches it: both have its blocks, by one name."""
    events = '{"enable_kv_cache_events": true, "endpoint": "tcp://127.0.0.1:*"}'
    asked = PROMPTS[-1]
    async with (
        channels(tiny, kv_events_config=events) as (_, prefill, decode),
        asyncio.timeout(60),
    ):
        nodes = prefill, decode
        early = [subscribed(node) for node in nodes]
        assert [(await anext(call)).snapshot.blocks for call in early] == [0, 0]
        await by_vllm_engine(prefill, decode, asked)
        live = [await blocks_of(asked, call) for call in early]
        late = [await blocks_of(asked, subscribed(node)) for node in nodes]
    assert len(live[0]) == len(asked) // BLOCK
    assert live[0] == live[1] == late[0] == late[1]


def subscribed(node: grpc.aio.Channel) -> AsyncIterator[kv_events_pb2.KvEventBatch]:
    path, kind = "/vllm.grpc.engine.VllmEngine/SubscribeKvEvents", kv_events_pb2.KvEventBatch
    return aiter(stream(node, path, kv_events_pb2.SubscribeKvEventsRequest(), kind))


async def blocks_of(
    tokens: Sequence[int], batches: AsyncIterator[kv_events_pb2.KvEventBatch]
) -> list[int]:
    """The hashes of a prompt's blocks, once all are heard of."""
    wanted = [tuple(tokens[at : at + BLOCK]) for at in range(0, len(tokens) - BLOCK + 1, BLOCK)]
    heard = dict[tuple[int, ...], int]()
    while not heard.keys() >= set(wanted):
        for event in (await anext(batches)).events:
            heard |= {tuple(one.token_ids): one.block_hash for one in event.stored.blocks}
    return [heard[one] for one in wanted]


def endless(name: str, tokens: int = 400) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(
        request_id=name,
        token_ids=inference_pb2.TokenIds(ids=prompt(20)),
        stopping=inference_pb2.StoppingCriteria(max_new_tokens=tokens, ignore_eos=True),
    )


async def last_of(
    call: AsyncIterable[inference_pb2.GenerateResponse],
) -> inference_pb2.GenerateResponse:
    return [reply async for reply in call][-1]
