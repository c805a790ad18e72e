"""The gRPC server: its services, their health, and reflection."""

import asyncio
import re
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from api.door.limiter import LARGEST_BODY
from api.grpc.cache_feed import CacheFeed
from api.grpc.calls import Completions, RunningCalls
from api.grpc.control import Control
from api.grpc.facts import ServerFacts
from api.grpc.health import NOT_SERVING, SERVING, Health
from api.grpc.inference import Inference
from api.grpc.mistakes import guarded_call, guarded_stream, hide_clients_that_left
from api.grpc.protos import control_pb2, inference_pb2, vllm_engine_pb2
from api.grpc.tokenizer_archive import TokenizerArchive
from api.grpc.vllm_engine import VllmEngine

MOST_CALLS = 4_096
OPTIONS = (
    ("grpc.so_reuseport", 0),  # a port that is taken is an error
    ("grpc.max_receive_message_length", LARGEST_BODY),
    ("grpc.keepalive_time_ms", 10_000),  # a host that died says nothing
    ("grpc.http2.ping_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),  # no limit
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)
LOOK_S = 1.0
SLOW_CLIENT_S = 600.0  # as by HTTP
INFERENCE = inference_pb2.DESCRIPTOR.services_by_name["Inference"]
CONTROL = control_pb2.DESCRIPTOR.services_by_name["Control"]
VLLM_ENGINE = vllm_engine_pb2.DESCRIPTOR.services_by_name["VllmEngine"]
SERVICES = tuple(one.full_name for one in (INFERENCE, CONTROL, VLLM_ENGINE))


@dataclass(slots=True)
class GrpcServer:
    """Listens from `listen` on, and serves from `start` to `close`; `run` keeps the health of
    its services up to date.
    """

    port: int
    _server: grpc.aio.Server
    _health: Health = field(default_factory=Health)
    _facts: ServerFacts | None = None
    _running: RunningCalls = field(default_factory=RunningCalls)

    @classmethod
    def listen(cls, address: str) -> "GrpcServer":
        """Listen at `address`, HOST:PORT, where port 0 is any free one. Raises OSError."""
        hide_clients_that_left()
        server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=MOST_CALLS)
        try:
            return cls(server.add_insecure_port(address), server)
        except RuntimeError as error:
            raise OSError(f"gRPC cannot listen at {address}: {error}") from error

    async def start(
        self,
        facts: ServerFacts,
        with_defaults: Completions,
        without_defaults: Completions,
        tokenizer: TokenizerArchive,
        cache_feed: CacheFeed | None = None,
    ) -> None:
        """Serve. The model's own sampling defaults apply to vllm.Inference, as with vLLM."""
        services = (
            (INFERENCE, Inference(with_defaults)),
            (CONTROL, Control(facts, with_defaults.running)),
            (VLLM_ENGINE, VllmEngine(without_defaults, facts, tokenizer, cache_feed)),
        )
        server, self._facts, self._running = self._server, facts, with_defaults.running
        server.add_generic_rpc_handlers([_handlers(*service) for service in services])
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        await self._tell_health()
        await server.start()

    async def run(self) -> None:
        """Tell watchers about the engine's health, and end calls whose clients do not read,
        until this is cancelled.
        """
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(LOOK_S)
            await self._tell_health()
            self._running.abort_unread(clock() - SLOW_CLIENT_S)

    async def stop_taking_calls(self) -> None:
        """Tell watchers that this server leaves; calls are served as before."""
        await self._health.enter_graceful_shutdown()

    async def close(self, grace_s: float) -> None:
        """End the server; calls that still run have this long, watchers of its health none."""
        self._health.end_watches()
        await self._server.stop(grace_s)

    async def _tell_health(self) -> None:
        healthy = self._facts is not None and self._facts.trouble() is None
        for service in ("", *SERVICES):
            await self._health.set(service, SERVING if healthy else NOT_SERVING)


def _handlers(service: ServiceDescriptor, servicer: object) -> grpc.GenericRpcHandler:
    """A service whose calls are the servicer's methods of these names, in Python's spelling."""
    methods = {method.name: _handler(method, servicer) for method in service.methods}
    return grpc.method_handlers_generic_handler(service.full_name, methods)


def _handler(method: MethodDescriptor, servicer: object) -> "grpc.RpcMethodHandler[Any, Any]":
    make, guarded = (
        (grpc.unary_stream_rpc_method_handler, guarded_stream)
        if method.server_streaming
        else (grpc.unary_unary_rpc_method_handler, guarded_call)
    )
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower()
    asked, said = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    serve = guarded(getattr(servicer, name), asked)
    return make(serve, response_serializer=said.SerializeToString)
