"""A node that listens for gRPC: what it tells of itself, and what its calls run on.

Only imported where that is wanted: it needs the extra `grpc`.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from api.defaults import Defaults
from api.endpoints import TextEndpoints
from api.grpc.cache_feed import CacheFeed
from api.grpc.calls import Completions, RunningCalls
from api.grpc.facts import ServerFacts
from api.grpc.server import GrpcServer
from api.grpc.tokenizer_archive import TokenizerArchive
from api.hub import text_file
from api.served import ServedModel
from api.text_files import TextParcel
from api.wire import UNREADABLE
from discovery.registration import Role
from engine.cache_events import CacheEvent
from engine.settings import read_lora_modules
from node.config import NodeConfig
from node.engine_client import EngineClient
from node.identity import NodeIdentity
from node.kv_events.settings import KvEventsConfig, read_kv_events_config
from node.legs import LegFinder
from node.refused_legs import RefusedLegs
from node.serving import GRACE_S

CONFIG = "config.json"
KV_ROLES = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}


class _Model(msgspec.Struct):
    """What routers read of config.json."""

    model_type: str = ""
    architectures: list[str] = []


@dataclass(frozen=True, slots=True)
class GrpcNode:
    """See node/grpc_door.py: GrpcDoor."""

    config: NodeConfig
    server: GrpcServer
    kv_events: KvEventsConfig
    cache_feed: CacheFeed | None

    @classmethod
    def listen(cls, config: NodeConfig, address: str) -> "GrpcNode":
        """Listen at `address`, HOST:PORT; raises OSError."""
        wanted = read_kv_events_config(config.kv_events_config)
        feed = CacheFeed(config.block_size, wanted.buffer_steps) if wanted.on else None
        return cls(config, GrpcServer.listen(address), wanted, feed)

    @property
    def port(self) -> int:
        """See GrpcDoor, here and below."""
        return self.server.port

    async def start(
        self,
        engine: EngineClient,
        identity: NodeIdentity,
        served: ServedModel,
        legs: LegFinder,
        kv_event_sources: Mapping[str, Mapping[str, object]],
        parcel: TextParcel | None,
    ) -> None:
        """Two kinds of call: for those of VllmEngine, the router knows the model's defaults."""
        running = RunningCalls()
        facts = _facts(self.config, engine, identity, served, kv_event_sources)
        context = engine.ready.max_model_len
        unlimited = replace(served, defaults=Defaults(max_new_tokens=context))
        give_up = RefusedLegs(legs, engine.decline).give_up_of
        ours, theirs = (
            Completions(TextEndpoints(engine, one, legs.of_text), give_up, running)
            for one in (served, unlimited)
        )
        archive = TokenizerArchive(parcel)
        await self.server.start(facts, ours, theirs, archive, self.cache_feed)

    async def run(self) -> None:
        """Once a second."""
        await self.server.run()

    def publish(self, events: Sequence[CacheEvent]) -> None:
        """To who calls SubscribeKvEvents."""
        if self.cache_feed is not None:
            self.cache_feed.publish(self.kv_events.told(events))

    async def stop_taking_calls(self) -> None:
        """By gRPC's health service."""
        await self.server.stop_taking_calls()

    async def close(self) -> None:
        """They have as long as those of HTTP."""
        if self.cache_feed is not None:
            self.cache_feed.close()
        await self.server.close(GRACE_S)


def _facts(
    config: NodeConfig,
    engine: EngineClient,
    identity: NodeIdentity,
    served: ServedModel,
    kv_event_sources: Mapping[str, Mapping[str, object]],
) -> ServerFacts:
    ready, model = engine.ready, _read_model(config.model)
    layout, adapters = ready.kv_layout, read_lora_modules(config.lora_modules)
    reasoning = config.reasoning_parser
    return ServerFacts(
        model=config.model,
        tokenizer=config.tokenizer or config.model,
        names=config.served_names,
        adapters=[(one.name, one.path) for one in adapters],
        generates=ready.pooling.generates,
        reads_text=served.codec is not None,
        model_type=model.model_type,
        architectures=model.architectures,
        vocab_size=served.num_token_ids if served.codec else 0,
        max_model_len=ready.max_model_len,
        block_size=layout.block_size,
        max_num_seqs=ready.max_num_seqs or config.max_num_seqs,
        max_batched_tokens=config.max_num_batched_tokens or 0,
        kv_dtype=layout.dtype,
        dtype=ready.dtype or layout.dtype,
        tensor_parallel_size=config.tensor_parallel_size,
        instance_id=identity.registration.node_id or "",
        fingerprint=ready.fingerprint,
        reasoning_parser="" if reasoning == "none" else reasoning,
        tool_call_parser=config.tool_call_parser,
        default_sampling_json=_sampling_json(served.defaults),
        started=time.time(),
        kv_role=lambda: KV_ROLES[identity.role],
        load=lambda: engine.load,
        trouble=lambda: engine.trouble,
        kv_event_sources=kv_event_sources,
    )


def _read_model(name: str) -> _Model:
    """From config.json; empty where there is none, or where it is not readable."""
    if (file := text_file(name, CONFIG)) is None:
        return _Model()
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Model)
    except (OSError, *UNREADABLE):
        return _Model()


def _sampling_json(defaults: Defaults) -> str:
    """The model's sampling defaults that are not OpenAI's, by vLLM's names."""
    plain = msgspec.to_builtins(defaults)
    usual = msgspec.to_builtins(Defaults())
    own = {name: value for name, value in plain.items() if value != usual[name]}
    if "max_new_tokens" in own:
        own["max_tokens"] = own.pop("max_new_tokens")
    return msgspec.json.encode(own).decode()
