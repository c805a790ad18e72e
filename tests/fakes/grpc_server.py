"""A gRPC server over a Generator that plays a script, and a client of all its calls."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from api.defaults import Defaults
from api.endpoints import TextEndpoints
from api.generator import Generator, Leg
from api.grpc.cache_feed import CacheFeed
from api.grpc.calls import Completions, RunningCalls
from api.grpc.facts import ServerFacts
from api.grpc.protos import inference_pb2, vllm_engine_pb2
from api.grpc.server import CONTROL, INFERENCE, VLLM_ENGINE, GrpcServer
from api.grpc.tokenizer_archive import TokenizerArchive
from api.served import ServedModel
from api.text_files import TextParcel
from engine.api import EngineLoad
from node.legs import LegFinder
from node.refused_legs import RefusedLegs
from tests.fakes.text import served

CONTEXT = 200
SOURCE = {
    "publisher": "zmq",
    "endpoint": "tcp://h:5557",
    "topic": "kv",
    "replay_endpoint": None,
    "buffer_steps": 10_000,
    "hwm": 100_000,
    "max_queue_size": 50,
}
FACTS = ServerFacts(
    model="/models/tiny",
    tokenizer="/models/words",
    names=("tiny", "alias"),
    adapters=[("poet", "/adapters/poet"), ("clerk", "/adapters/clerk")],
    generates=True,
    reads_text=True,
    model_type="llama",
    architectures=("LlamaForCausalLM",),
    vocab_size=300,
    max_model_len=CONTEXT,
    block_size=16,
    max_num_seqs=64,
    max_batched_tokens=512,
    kv_dtype="float8_e4m3fn",
    dtype="bfloat16",
    tensor_parallel_size=2,
    instance_id="node-1",
    fingerprint="f" * 8,
    reasoning_parser="deepseek_r1",
    tool_call_parser="hermes",
    default_sampling_json='{"temperature":0.6}',
    started=1.0,
    kv_role=lambda: "kv_producer",
    load=lambda: EngineLoad(waiting=2, running=3, free_blocks=75, total_blocks=100),
    trouble=lambda: None,
    kv_event_sources={"0": SOURCE},
)


LOOPS: set[asyncio.AbstractEventLoop] = set()
NEWER = b"\x98\x06\x01"  # field 99 is 1


@dataclass
class Caller:
    """Calls the server. `declined` are the legs whose KV no call will fetch."""

    channel: grpc.aio.Channel
    server: GrpcServer
    running: RunningCalls
    declined: list[Leg] = field(default_factory=list)

    async def generate(
        self, request: inference_pb2.GenerateRequest
    ) -> inference_pb2.GenerateResponse:
        said: inference_pb2.GenerateResponse = await self.call("Generate", request)
        return said

    async def stream(
        self, request: inference_pb2.GenerateRequest
    ) -> list[inference_pb2.GenerateResponse]:
        return [said async for said in self.call("GenerateStream", request)]

    async def engine(
        self, request: vllm_engine_pb2.GenerateRequest
    ) -> list[vllm_engine_pb2.GenerateResponse]:
        return [said async for said in self.call("Generate", request, VLLM_ENGINE)]

    def call(self, name: str, request: Message, service: Any = INFERENCE) -> Any:  # noqa: ANN401
        """The call, begun."""
        return self.method(service.methods_by_name[name])(request)

    def method(self, method: MethodDescriptor) -> Callable[..., Any]:
        channel: Any = self.channel
        make = channel.unary_stream if method.server_streaming else channel.unary_unary
        begun: Callable[..., Any] = make(
            f"/{method.containing_service.full_name}/{method.name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        return begun

    async def ask(self, name: str, service: Any = CONTROL) -> Any:  # noqa: ANN401
        """What a call without arguments says."""
        method = service.methods_by_name[name]
        return await self.call(name, GetMessageClass(method.input_type)(), service)


Decline = Callable[[Leg], Awaitable[None]]


@asynccontextmanager
async def serving(
    door: Generator,
    model: ServedModel | None = None,
    facts: ServerFacts = FACTS,
    cache_feed: CacheFeed | None = None,
    parcel: TextParcel | None = None,
) -> AsyncGenerator[Caller]:
    """A node's gRPC server, as it is until the context is left; each on the process's one loop.

    gRPC's queue belongs to the process. What a call that was left brings late goes to the loop
    that the call was made on; where that one is closed, another test finds an error in its log.
    """
    LOOPS.add(asyncio.get_running_loop())
    assert len(LOOPS) == 1, "only tests in files named test_grpc_* have the loop of gRPC"
    server, running, declined = GrpcServer.listen("127.0.0.1:0"), RunningCalls(), list[Leg]()

    async def decline(leg: Leg) -> None:
        declined.append(leg)

    one = model or served(context=CONTEXT)
    unlimited = replace(one, defaults=Defaults(max_new_tokens=CONTEXT))
    legs = LegFinder("h:2")
    give_up = RefusedLegs(legs, decline).give_up_of
    ours, theirs = (
        Completions(TextEndpoints(door, each, legs.of_text), give_up, running)
        for each in (one, unlimited)
    )
    await server.start(facts, ours, theirs, TokenizerArchive(parcel), cache_feed)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            yield Caller(channel, server, running, declined)
    finally:
        await server.close(0)


def asking(**fields: Any) -> inference_pb2.GenerateRequest:  # noqa: ANN401  protobuf's own
    """A request of vllm.Inference, for a text unless it has another prompt."""
    return inference_pb2.GenerateRequest(**{"text": "the cat", **fields})


@dataclass(frozen=True)
class Refused:
    """How a call ended."""

    code: grpc.StatusCode
    why: str


async def refusal(call: Awaitable[object]) -> Refused:
    """How a call ends that is to fail."""
    try:
        said = await call
    except grpc.aio.AioRpcError as error:
        return Refused(error.code(), error.details() or "")
    raise AssertionError(f"it was answered: {said}")


async def rest(call: Any) -> list[Any]:  # noqa: ANN401  of either service
    said = []
    while (reply := await call.read()) is not grpc.aio.EOF:
        said.append(reply)
    return said


def reason(reply: Any) -> str:  # noqa: ANN401  of either service
    if isinstance(reply, vllm_engine_pb2.GenerateResponse):
        return reply.complete.finish_reason
    ended: str = inference_pb2.FinishInfo.FinishReason.Name(
        reply.outputs.finish_info.finish_reason
    )
    return ended


def fields_of(body: Mapping[str, object]) -> dict[str, object]:
    """A body without its prompt."""
    return {name: value for name, value in body.items() if name != "prompt"}
