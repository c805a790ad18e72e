"""Publishes cache events at a ZMQ PUB socket, and the last ones again to who asks for them.

    PUB     [topic, sequence number, batch]                      for each batch
    ROUTER  [client, "", first number]                           a request to replay
            [client, "", topic, sequence number, batch] ...      the batches from there on
            [client, "", "", -1, ""]                             the end

Numbers are 8 bytes, big-endian, and count batches from 0. This is vLLM's protocol, since 0.26.
A subscriber that finds a gap asks for a replay; one that comes later than what is kept knows
nothing of older blocks until they are stored again.
"""

import asyncio
import errno
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from discovery.address import format_address
from engine.cache_events import CacheEvent
from node.kv_events.encoding import RANK, EventEncoder
from node.kv_events.settings import FILE, FLAG, PORT, TCP, KvEventsConfig, is_bound

NUMBER_BYTES, END = 8, -1
LARGEST_REQUEST = 256  # bytes
AT_ONCE = 64  # replayed batches before other tasks have a turn
log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class KvEventPublisher:
    """Publishes from `open` to `close`; answers requests to replay while `run` runs.

    `sources` describes it as vLLM's GET /kv_event_sources does, with addresses to connect to.
    """

    config: KvEventsConfig
    encoder: EventEncoder
    sources: Mapping[str, Mapping[str, object]]
    _context: zmq.asyncio.Context
    _publisher: "zmq.Socket[bytes]"
    _replays: zmq.asyncio.Socket
    clock: Callable[[], float] = time.time
    _published: int = 0
    _kept: deque[tuple[int, bytes]] = field(default_factory=deque)

    @classmethod
    def open(
        cls, config: KvEventsConfig, encoder: EventEncoder, host: str, advertised: str
    ) -> "KvEventPublisher":
        """Bind or connect the sockets; raises OSError. Others reach `host` by `advertised`."""
        context = zmq.asyncio.Context()
        plain: zmq.Context[zmq.Socket[bytes]] = zmq.Context.shadow(context.underlying)
        publisher, replays = plain.socket(zmq.PUB), context.socket(zmq.ROUTER)
        publisher.setsockopt(zmq.SNDHWM, config.hwm)
        replays.setsockopt(zmq.SNDHWM, config.buffer_steps + 1)
        replays.setsockopt(zmq.MAXMSGSIZE, LARGEST_REQUEST)
        wanted = config.endpoint or TCP + format_address(host, PORT)
        open_ = _bind if config.endpoint is None or is_bound(wanted) else _connect
        again, names = config.replay_endpoint, {"0.0.0.0", "::", host}
        try:
            endpoint = _told(open_(publisher, wanted), names, advertised)
            again = again and _told(_bind(replays, again), names, advertised)
        except OSError:
            _close(context, publisher, replays)
            raise
        told = {
            **msgspec.structs.asdict(config),
            "endpoint": endpoint,
            "replay_endpoint": again,
        }
        for ours in ("encoding", "lower_tiers"):  # others may know no keys but vLLM's
            del told[ours]
        sources = {str(RANK): told}
        kept = deque[tuple[int, bytes]](maxlen=config.buffer_steps)
        return cls(config, encoder, sources, context, publisher, replays, _kept=kept)

    def publish(self, events: Sequence[CacheEvent]) -> None:
        """Publish one batch. It never waits: a subscriber that is too slow loses batches."""
        events = self.config.told(events)
        if not events:
            return
        batch, number = self.encoder.encode(self.clock(), events), self._published
        self._publisher.send_multipart([self._topic, _number(number), batch])
        self._published += 1
        if self.config.replay_endpoint is not None:
            self._kept.append((number, batch))

    async def run(self) -> None:
        """Answer requests to replay, one after the other, until cancelled."""
        while True:
            client, *rest = await self._replays.recv_multipart()
            if len(rest) == 2 and rest[0] == b"" and len(rest[1]) == NUMBER_BYTES:
                first = int.from_bytes(rest[1], "big", signed=True)
                await self._replay(client, first)
            else:
                log.warning("a request to replay KV events is none: %d frames", len(rest))

    def close(self) -> None:
        """Close the sockets; for up to a second, what was published is still sent."""
        _close(self._context, self._publisher, self._replays, linger_ms=1000)

    @property
    def _topic(self) -> bytes:
        return self.config.topic.encode()

    async def _replay(self, client: bytes, first: int) -> None:
        wanted = [(number, batch) for number, batch in self._kept if number >= first]
        for sent, (number, batch) in enumerate(wanted):
            await self._replays.send_multipart(
                [client, b"", self._topic, _number(number), batch]
            )
            if sent % AT_ONCE == 0:
                await asyncio.sleep(0)
        await self._replays.send_multipart([client, b"", b"", _number(END), b""])


class SilentPublisher:
    """In place of a KvEventPublisher where nothing is published."""

    sources: Mapping[str, Mapping[str, object]] = {}

    def publish(self, events: Sequence[CacheEvent]) -> None:
        """Nothing is logged, so there are none."""

    async def run(self) -> None:
        """There is nothing to answer."""


@contextmanager
def event_publisher(
    config: KvEventsConfig, encoder: EventEncoder, host: str, advertised: str
) -> Iterator[KvEventPublisher | SilentPublisher]:
    """A publisher, closed at the end; see KvEventPublisher.open."""
    if not config.on:
        yield SilentPublisher()
        return
    publisher = KvEventPublisher.open(config, encoder, host, advertised)
    try:
        log.info("KV events: %s", publisher.sources[str(RANK)]["endpoint"])
        yield publisher
    finally:
        publisher.close()


def _close(
    context: zmq.asyncio.Context, *sockets: "zmq.Socket[Any]", linger_ms: int = 0
) -> None:
    for one in sockets:
        one.close(linger=linger_ms)
    context.term()


def _bind(door: "zmq.Socket[Any]", endpoint: str) -> str:
    """Bind; returns the endpoint with its port. ZMQ itself would take a file from others."""
    door.setsockopt(zmq.IPV6, "[" in endpoint)
    try:
        if endpoint.startswith(FILE) and _is_served(endpoint.removeprefix(FILE)):
            raise zmq.ZMQError(errno.EADDRINUSE)
        door.bind(endpoint)
    except zmq.ZMQError as error:
        raise OSError(f"{FLAG}: {endpoint} cannot be bound: {error}") from error
    return door.getsockopt_string(zmq.LAST_ENDPOINT)


def _connect(door: "zmq.Socket[Any]", endpoint: str) -> str:
    door.setsockopt(zmq.IPV6, _is_ipv6(endpoint))
    try:
        door.connect(endpoint)
    except zmq.ZMQError as error:
        raise OSError(f"{FLAG}: {endpoint} cannot be connected to: {error}") from error
    return endpoint


def _is_ipv6(endpoint: str) -> bool:
    """Also of a name without an IPv4 address; ZMQ looks for one only, unless told."""
    host, *_ = endpoint.removeprefix(TCP).rpartition(":")
    with suppress(OSError, ValueError):  # a name that is known later, or never
        found = socket.getaddrinfo(host.strip("[]"), None)
        return all(family is socket.AF_INET6 for family, *_ in found)
    return False


def _is_served(path: str) -> bool:
    """Whether somebody listens at this file; one that was left behind is free."""
    with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):  # too long a path
        probe.setblocking(False)
        return probe.connect_ex(path) in (0, errno.EAGAIN)
    return False


def _told(endpoint: str, names: Container[str], advertised: str) -> str:
    """The endpoint for others to connect to: `advertised`, where it is bound at these names;
    a file by its whole path, since they run elsewhere (`@`: a name without a file).
    """
    path = endpoint.removeprefix(FILE)
    if path != endpoint and not path.startswith("@"):
        return FILE + str(Path(path).absolute())
    host, _, port = endpoint.removeprefix(TCP).rpartition(":")
    if not endpoint.startswith(TCP) or host.strip("[]") not in names:
        return endpoint
    return TCP + format_address(advertised, port)


def _number(number: int) -> bytes:
    return number.to_bytes(NUMBER_BYTES, "big", signed=True)
