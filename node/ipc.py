"""What a node's two processes say to each other: typed messages over one ZMQ pair."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import msgspec
from msgspec.structs import replace

from api.generator import Event, Leg, PooledEvent
from engine.api import EngineLoad
from engine.pooling.config import ANYTHING, PoolingConfig
from engine.request import PoolingRequest, Request, RequestId
from engine.settings import EngineConfig
from kv_transfer.layout import KvLayout

BEAT_S = 0.5  # an engine with nothing to tell says at least this often that it lives
NO_LOAD = EngineLoad(0, 0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineJob:
    """All that the engine process is told at its start, on its standard input."""

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


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Run one leg; the request's id is used once only.

    It came at `since`, in seconds of the machine's monotonic clock, which both processes read:
    what waits here while a batch runs has queued.
    """

    request: Request
    leg: Leg
    since: float

    @classmethod
    def of(cls, request: Request, leg: Leg, since: float) -> Self:
        """Without what others relay in a ticket: it may be anything, and is for nobody here."""
        if leg.ticket is not None:
            leg = replace(leg, ticket=replace(leg.ticket, relayed={}, verbatim=None))
        return cls(request, leg, since)


class Pool(msgspec.Struct, frozen=True, tag="pool"):
    """Run one prompt and pool it; `since` is as with Submit."""

    request: PoolingRequest
    since: float


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Nobody listens to this leg any more."""

    request_id: RequestId


class Renice(msgspec.Struct, frozen=True, tag="renice"):
    """Give way to other processes by so much more than the door does."""

    niceness: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The engine is loaded; what others may know of it."""

    fingerprint: str
    kv_layout: KvLayout
    max_model_len: int
    kv_port: int
    load: EngineLoad
    pooling: PoolingConfig = ANYTHING
    kv_connector: str | None = None
    made_of: Mapping[str, str] = {}


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The engine cannot start, and why."""

    reason: str


class News(msgspec.Struct, frozen=True, tag="news"):
    """What a step brought; without events it is a sign of life.

    `load_failures` counts KV that could not be used, by kind, since the engine's start.
    `sweep_late_s`: for how long nobody has looked whether a lease of a hand-over is over.
    """

    events: Sequence[tuple[RequestId, Event | PooledEvent]]
    load: EngineLoad
    load_failures: Mapping[str, int] = {}
    sweep_late_s: float = 0.0


ToEngine = Submit | Pool | Abort | Renice
ToDoor = Ready | Refused | News

_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_to_door = msgspec.msgpack.Decoder(ToDoor)


def encode(message: ToEngine | ToDoor) -> bytes:
    """One frame."""
    return _encoder.encode(message)


def decode_to_engine(frame: bytes) -> ToEngine:
    """What the door said."""
    message: ToEngine = _to_engine.decode(frame)
    return message


def decode_to_door(frame: bytes) -> ToDoor:
    """What the engine said."""
    message: ToDoor = _to_door.decode(frame)
    return message
