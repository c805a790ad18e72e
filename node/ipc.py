"""Messages between a node's two processes, over one ZMQ PAIR socket, in msgpack.

The door is the HTTP server process; the engine process runs the model and the KV transfers.

    SubmitLeg          door -> engine   run one leg: prefill, decode or a whole request
    SubmitPooling      door -> engine   run one prompt and pool its hidden states
    DeclineLeg         door -> engine   no leg will come for this KV
    Abort              door -> engine   stop a request
    SetNiceness        door -> engine   change the scheduling priority of the process
    EngineReady        engine -> door   first message: the model is loaded
    EngineStartFailed  engine -> door   or: it cannot be loaded
    EngineOutputs      engine -> door   events of legs and the load; also the heartbeat
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import msgspec
from msgspec.structs import replace

from api.generator import Event, Leg, PooledEvent
from engine.api import EngineLoad
from engine.cache_events import CacheEvent
from engine.pooling.config import DEFAULT_POOLING, PoolingConfig
from engine.request import PoolingRequest, Request, RequestId
from engine.settings import EngineConfig
from kv_transfer.layout import KvLayout

HEARTBEAT_S = 0.5  # EngineOutputs come at least this often, with or without events
NO_LOAD = EngineLoad(0, 0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProcessConfig:
    """The settings of an engine process, which it reads from its standard input."""

    engine: EngineConfig
    ipc_address: str
    engine_id: str
    connector: str
    kv_host: str
    kv_port: int
    advertise_host: str
    log_level: str
    kv_checksum: str
    kv_load_failure: str
    niceness: int = 0
    lossy_log: bool = False
    cluster_key: str | None = field(default=None, repr=False)


class SubmitLeg(msgspec.Struct, frozen=True, tag="submit"):
    """Run one leg. The request's id is never used again on this node.

    `since` is when the door received it, in seconds of the machine's monotonic clock, so that
    time spent in this socket counts as queueing.
    """

    request: Request
    leg: Leg
    since: float

    @classmethod
    def of(cls, request: Request, leg: Leg, since: float) -> Self:
        """Create it without ticket fields that only other nodes read: they may hold
        anything.
        """
        return cls(request, _reduced(leg), since)


class SubmitPooling(msgspec.Struct, frozen=True, tag="pool"):
    """Run one prompt and pool it; `since` is as in SubmitLeg."""

    request: PoolingRequest
    since: float


class DeclineLeg(msgspec.Struct, frozen=True, tag="decline"):
    """The call for this leg was refused: its source need not keep the KV for it."""

    leg: Leg

    @classmethod
    def of(cls, leg: Leg) -> Self:
        """Create it without those fields, like SubmitLeg."""
        return cls(_reduced(leg))


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Stop this request: its client or its proxy is gone."""

    request_id: RequestId


class SetNiceness(msgspec.Struct, frozen=True, tag="renice"):
    """Set the engine process's niceness, relative to that of the door."""

    niceness: int


class EngineReady(msgspec.Struct, frozen=True, tag="ready"):
    """The model is loaded; what the node's registration says about it."""

    fingerprint: str
    kv_layout: KvLayout
    max_model_len: int
    kv_port: int
    load: EngineLoad
    pooling: PoolingConfig = DEFAULT_POOLING
    kv_connector: str | None = None
    made_of: Mapping[str, str] = {}
    adapters: tuple[str, ...] = ()
    max_num_seqs: int | None = None
    dtype: str | None = None


class EngineStartFailed(msgspec.Struct, frozen=True, tag="refused"):
    """The engine process cannot start, and ends."""

    reason: str


class EngineOutputs(msgspec.Struct, frozen=True, tag="news"):
    """Events of the last step, and the engine's load; without events a heartbeat.

    `load_failures` counts KV loads that failed since the engine's start, by kind.
    `refused_connections` counts connections that the KV port refused, by reason.
    `sweep_late_s`: by how many seconds the transfer thread is late in expiring leases.
    `cache_events` are what has happened to the prefix cache, if somebody wants to know.
    """

    events: Sequence[tuple[RequestId, Event | PooledEvent]]
    load: EngineLoad
    load_failures: Mapping[str, int] = {}
    sweep_late_s: float = 0.0
    cache_events: tuple[CacheEvent, ...] = ()
    refused_connections: Mapping[str, int] = {}


ToEngine = SubmitLeg | SubmitPooling | DeclineLeg | Abort | SetNiceness
FromEngine = EngineReady | EngineStartFailed | EngineOutputs

_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_to_door = msgspec.msgpack.Decoder(FromEngine)


def _reduced(leg: Leg) -> Leg:
    if leg.ticket is None:
        return leg
    return replace(leg, ticket=replace(leg.ticket, relayed={}, verbatim=None))


def encode(message: ToEngine | FromEngine) -> bytes:
    """The message as one ZMQ frame."""
    return _encoder.encode(message)


def decode_to_engine(frame: bytes) -> ToEngine:
    """A message of the door; raises msgspec.DecodeError."""
    message: ToEngine = _to_engine.decode(frame)
    return message


def decode_from_engine(frame: bytes) -> FromEngine:
    """A message of the engine process; raises msgspec.DecodeError."""
    message: FromEngine = _to_door.decode(frame)
    return message
