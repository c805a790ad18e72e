"""vllm.Control: what a server says of itself to vLLM's router and Dynamo's sidecar."""

from collections.abc import Mapping
from dataclasses import dataclass

from api.grpc.calls import Context, RunningCalls
from api.grpc.facts import ServerFacts
from api.grpc.protos import control_pb2 as pb
from api.version import own_version

API = "vllm"  # whose calls these are; Dynamo asks for it
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Control:
    """Serves the calls of vllm.Control."""

    facts: ServerFacts
    running: RunningCalls

    async def get_server_info(
        self, _request: pb.GetServerInfoRequest, _context: Context
    ) -> pb.ServerInfo:
        """The server's sizes. Data-parallel ranks are nodes of their own here."""
        facts = self.facts
        size = facts.tensor_parallel_size
        parallelism = pb.ParallelismInfo(
            tensor_parallel_size=size,
            pipeline_parallel_size=1,
            data_parallel_size=1,
            decode_context_parallel_size=1,
            world_size=size,
            data_parallel_size_local=1,
        )
        return pb.ServerInfo(
            engine_version=own_version(),
            api_version=API,
            instance_id=facts.instance_id,
            parallelism=parallelism,
            max_model_len=facts.max_model_len,
            kv_block_size=facts.block_size,
            total_kv_blocks=facts.load().total_blocks,
            max_running_requests=facts.max_num_seqs,
            max_batched_tokens=facts.max_batched_tokens,
            max_loras=len(facts.adapters),
            effective_attention_block_size=facts.block_size,
        )

    async def get_model_info(
        self, _request: pb.GetModelInfoRequest, _context: Context
    ) -> pb.ModelInfo:
        """The model, and what a request may have."""
        facts = self.facts
        return pb.ModelInfo(
            model_id=facts.model,
            served_model_name=facts.names[0],
            served_model_aliases=facts.names[1:],
            supports_text_input=facts.reads_text,
            supports_token_ids_input=True,
            supports_lora=bool(facts.adapters),
            reasoning_parser=facts.reasoning_parser,
            tool_call_parser=facts.tool_call_parser,
        )

    async def abort(self, request: pb.AbortRequest, _context: Context) -> pb.AbortResponse:
        """End calls by their ids."""
        self.running.abort(request.request_ids)
        return pb.AbortResponse()

    async def list_loras(
        self, _request: pb.ListLorasRequest, _context: Context
    ) -> pb.ListLorasResponse:
        """The adapters that the server started with, numbered from 1."""
        return pb.ListLorasResponse(
            adapters=[
                pb.LoraAdapter(lora_id=number, lora_name=name, source_path=path)
                for number, (name, path) in enumerate(self.facts.adapters, 1)
            ]
        )

    async def get_kv_event_sources(
        self, _request: pb.GetKvEventSourcesRequest, _context: Context
    ) -> pb.GetKvEventSourcesResponse:
        """Where the cache events are published; empty if nowhere."""
        sources = self.facts.kv_event_sources.items()
        return pb.GetKvEventSourcesResponse(sources=[_source(*one) for one in sources])

    async def is_paused(
        self, _request: pb.IsPausedRequest, _context: Context
    ) -> pb.IsPausedResponse:
        """Never: nothing pauses the engine."""
        return pb.IsPausedResponse()

    async def is_sleeping(
        self, _request: pb.IsSleepingRequest, _context: Context
    ) -> pb.IsSleepingResponse:
        """Never: the engine keeps its memory."""
        return pb.IsSleepingResponse()


def _source(rank: str, told: Mapping[str, object]) -> pb.KvEventSource:
    return pb.KvEventSource(
        transport=str(told["publisher"]),
        endpoint=str(told["endpoint"]),
        topic=str(told["topic"]),
        replay_endpoint=str(told["replay_endpoint"] or ""),
        data_parallel_rank=int(rank),
        encoding="msgpack",
        schema_version=SCHEMA,
        buffer_steps=_number(told["buffer_steps"]),
        hwm=_number(told["hwm"]),
        max_queue_size=_number(told["max_queue_size"]),
    )


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value
