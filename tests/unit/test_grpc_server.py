"""What the gRPC server says of itself: services and facts."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, ClassVar

import grpc
import pytest
import pytest_asyncio
from google.protobuf import descriptor_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from api.grpc.protos import control_pb2, inference_pb2, vllm_engine_pb2
from api.grpc.server import VLLM_ENGINE, GrpcServer
from api.version import own_version
from tests.fakes.grpc_server import FACTS, Caller, refusal, serving
from tests.fakes.text import OneToken, saying

NAMES = ["vllm.Inference", "vllm.Control", "vllm.grpc.engine.VllmEngine"]


@pytest_asyncio.fixture(loop_scope="session")
async def caller() -> AsyncGenerator[Caller]:
    async with serving(saying("the dog")) as caller:
        yield caller


async def test_its_services_can_be_asked_for(caller: Caller) -> None:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub
    info = stub(caller.channel).ServerReflectionInfo
    asks = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        *(reflection_pb2.ServerReflectionRequest(file_containing_symbol=one) for one in NAMES),
    ]
    listed, *files = [said async for said in info(iter(asks))]
    there = {one.name for one in listed.list_services_response.service}
    apart = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    assert there == {*NAMES, *apart}
    protos = [one.file_descriptor_response.file_descriptor_proto for one in files]
    names = [
        {one.name for one in descriptor_pb2.FileDescriptorProto.FromString(texts[0]).service}
        for texts in protos
    ]
    assert names == [{"Inference"}, {"Control"}, {"VllmEngine"}]


async def test_a_port_that_is_taken_is_an_os_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=address):
            GrpcServer.listen(address)


async def test_two_servers_do_not_share_a_port(caller: Caller) -> None:
    with pytest.raises(OSError, match="cannot listen"):
        GrpcServer.listen(f"127.0.0.1:{caller.server.port}")


@pytest.mark.parametrize("path", ["/vllm.Control/Shutdown", f"/{NAMES[2]}/Embed", "/other.S/A"])
async def test_calls_that_are_not_served_say_so(caller: Caller, path: str) -> None:
    """A router finds out by that which make of server it talks to."""
    channel: Any = caller.channel
    ended = await refusal(channel.unary_unary(path)(b""))
    assert ended.code is grpc.StatusCode.UNIMPLEMENTED


async def test_control_tells_of_the_server(caller: Caller) -> None:
    assert await caller.ask("GetServerInfo") == control_pb2.ServerInfo(
        engine_version=own_version(),
        api_version="vllm",
        instance_id="node-1",
        parallelism={
            "tensor_parallel_size": 2,
            "pipeline_parallel_size": 1,
            "data_parallel_size": 1,
            "decode_context_parallel_size": 1,
            "world_size": 2,
            "data_parallel_size_local": 1,
        },
        max_model_len=200,
        kv_block_size=16,
        total_kv_blocks=100,
        max_running_requests=64,
        max_batched_tokens=512,
        max_loras=2,
        effective_attention_block_size=16,
    )


async def test_control_tells_of_the_model_and_its_adapters(caller: Caller) -> None:
    assert await caller.ask("GetModelInfo") == control_pb2.ModelInfo(
        model_id="/models/tiny",
        served_model_name="tiny",
        served_model_aliases=["alias"],
        supports_text_input=True,
        supports_token_ids_input=True,
        supports_lora=True,
        reasoning_parser="deepseek_r1",
        tool_call_parser="hermes",
    )
    adapters = [
        (one.lora_id, one.lora_name, one.source_path)
        for one in (await caller.ask("ListLoras")).adapters
    ]
    assert adapters == [(1, "poet", "/adapters/poet"), (2, "clerk", "/adapters/clerk")]


async def test_nothing_pauses_the_engine_or_puts_it_to_sleep(caller: Caller) -> None:
    assert not (await caller.ask("IsPaused")).paused
    assert not (await caller.ask("IsSleeping")).sleeping


class TestKvEvents:
    """Where cache events are published."""

    told: ClassVar[dict[str, Any]] = {
        "transport": "zmq",
        "endpoint": "tcp://h:5557",
        "topic": "kv",
        "encoding": "msgpack",
        "schema_version": 1,
        "buffer_steps": 10_000,
        "hwm": 100_000,
        "max_queue_size": 50,
        "data_parallel_rank": 0,
    }

    async def test_a_publisher_without_a_replay(self, caller: Caller) -> None:
        said = await caller.ask("GetKvEventSources")
        assert list(said.sources) == [control_pb2.KvEventSource(**self.told)]

    async def test_one_with_a_replay(self) -> None:
        replay = "tcp://h:5558"
        source = {**FACTS.kv_event_sources["0"], "replay_endpoint": replay}
        facts = replace(FACTS, kv_event_sources={"0": source})
        async with serving(saying("the dog"), facts=facts) as caller:
            said = await caller.ask("GetKvEventSources")
        expected = control_pb2.KvEventSource(**self.told, replay_endpoint=replay)
        assert list(said.sources) == [expected]

    async def test_none(self) -> None:
        facts = replace(FACTS, kv_event_sources={})
        async with serving(saying("the dog"), facts=facts) as caller:
            assert not (await caller.ask("GetKvEventSources")).sources


async def test_a_router_is_told_of_the_model(caller: Caller) -> None:
    expected = vllm_engine_pb2.GetModelInfoResponse(
        model_path="/models/tiny",
        is_generation=True,
        max_context_length=200,
        vocab_size=300,
        served_model_name="tiny",
        tokenizer_path="/models/words",
        model_type="llama",
        architectures=["LlamaForCausalLM"],
        max_req_input_len=199,
        default_sampling_params_json='{"temperature":0.6}',
    )
    assert await caller.ask("GetModelInfo", VLLM_ENGINE) == expected


async def test_a_router_is_told_what_to_pair_and_what_runs() -> None:
    door = OneToken()
    async with serving(door) as caller, asyncio.timeout(10):
        call = caller.call("GenerateStream", inference_pb2.GenerateRequest(text="the"))
        await door.waits.wait()
        said = await caller.ask("GetServerInfo", VLLM_ENGINE)
        call.cancel()
        await door.closed.wait()
    assert said.uptime_seconds > 0
    said.ClearField("uptime_seconds")
    assert said == vllm_engine_pb2.GetServerInfoResponse(
        active_requests=1,
        server_type="vllm-grpc",
        kv_connector="NixlConnector",
        kv_role="kv_producer",
        kv_engine_id="node-1",
        data_parallel_size=1,
        kv_cache_dtype="float8_e4m3fn",
        block_size=16,
        model_dtype="torch.bfloat16",
        pairing_protocol="f" * 8,
        max_num_seqs=64,
    )


async def test_a_router_is_told_how_busy_the_engine_is(caller: Caller) -> None:
    said = await caller.ask("GetLoads", VLLM_ENGINE)
    assert (said.version, said.dp_rank_count) == (own_version(), 1)
    assert datetime.fromisoformat(said.timestamp).tzinfo is UTC
    assert list(said.loads) == [
        vllm_engine_pb2.SchedulerLoad(
            num_running_reqs=3,
            num_waiting_reqs=2,
            num_total_reqs=5,
            num_used_tokens=25 * 16,
            max_total_num_tokens=100 * 16,
            token_usage=0.25,
            max_running_requests=64,
        )
    ]
