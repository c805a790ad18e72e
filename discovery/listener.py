"""Receives the heartbeats of all nodes at a ZMQ ROUTER, and feeds the registry."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import zmq

from discovery.address import format_address
from discovery.errors import MalformedRegistration
from discovery.intake import Intake, JoinedNode
from discovery.node import Node
from discovery.ports import passive_address
from discovery.registration import DEFAULT_PORT, State
from discovery.registry import Registry
from discovery.replies import REPLY, ReplySchedule
from discovery.signature import Verifier
from discovery.wordless_connections import WordlessConnections

LOOK_S = 0.5  # between two checks for silent nodes
GATHER_S = 0.02  # to gather messages: waking up costs more than reading one
MOST_AT_ONCE = 64  # messages read before other tasks have a turn
# more than is allowed, so that oversized messages can be counted; ZMQ cuts beyond
LARGEST_READ = 2 << 20
MOST_UNREAD = 16  # messages of one sender
HANDSHAKE_S = 5.0  # longer than any healthy handshake takes; then ZMQ ends the connection
WATCH = {
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 30,
    zmq.TCP_KEEPALIVE_INTVL: 10,
    zmq.TCP_KEEPALIVE_CNT: 3,
}
MAPPED = "::ffff:"  # an IPv4 peer of an IPv6 socket

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Listener:
    """Feeds the registry while `run` runs."""

    intake: Intake
    port: int
    look_s: float
    clock: Callable[[], float]
    _context: zmq.Context[zmq.Socket[bytes]]
    _router: zmq.Socket[bytes]
    _wordless: WordlessConnections
    _replies: ReplySchedule = field(default_factory=ReplySchedule)

    @classmethod
    def bind(
        cls,
        registry: Registry,
        host: str,
        port: int = DEFAULT_PORT,
        *,
        cluster_key: bytes | None = None,
        look_s: float = LOOK_S,
        handshake_s: float = HANDSHAKE_S,
    ) -> "Listener":
        """Open the socket; port 0 lets the system pick one, which `port` then has."""
        context = zmq.Context[zmq.Socket[bytes]]()
        router = context.socket(zmq.ROUTER)
        try:
            router.setsockopt(zmq.HANDSHAKE_IVL, int(handshake_s * 1000))
            bound = _bind(router, host, port)
            endings = WordlessConnections.of(router)
        except BaseException:
            router.close(linger=0)
            context.term()
            raise
        intake = Intake(registry, Verifier(cluster_key) if cluster_key else None)
        return cls(intake, bound, look_s, time.monotonic, context, router, endings)

    async def run(self) -> None:
        """Receive registrations and expire silent nodes, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen())
            tasks.create_task(self._expire_nodes())

    def close(self) -> None:
        """Release the port; to be called by whoever called `bind`."""
        self._wordless.close()
        self._router.close(linger=0)
        self._context.term()

    async def _listen(self) -> None:
        """Handle a single message at once; under load handle messages in batches."""
        while True:
            # before the messages, since some may be from these connections
            ended = self._wordless.read(MOST_AT_ONCE)
            heard = self._drain()
            if ended and heard < MOST_AT_ONCE:
                self._report_wordless()
            if MOST_AT_ONCE in (heard, ended):
                await asyncio.sleep(0)
            elif heard or ended:
                await asyncio.sleep(GATHER_S)
            else:
                await self._wait_readable()

    async def _wait_readable(self) -> None:
        """Wait until there may be messages. ZMQ signals once only, so read all first."""
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        messages = self._router.getsockopt(zmq.FD)
        assert isinstance(messages, int)
        descriptors = messages, self._wordless.descriptor
        for descriptor in descriptors:
            loop.add_reader(descriptor, readable.set)
        try:
            await readable.wait()
        finally:
            for descriptor in descriptors:
                loop.remove_reader(descriptor)

    def _drain(self) -> int:
        """Handle waiting messages, at most MOST_AT_ONCE; returns how many there were."""
        for heard in range(MOST_AT_ONCE):
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return heard
            self._wordless.note_message(frames)
            self._receive(frames)
        return MOST_AT_ONCE

    def _report_wordless(self) -> None:
        if (wordless := self._wordless.count_wordless()) and self.intake.count_wordless(
            wordless
        ):
            logger.warning(
                "a connection ended before a message came by it: it was not ZMQ's, its "
                "handshake did not end, or it sent over %d bytes; more are only counted",
                LARGEST_READ,
            )

    def _receive(self, frames: list[zmq.Frame]) -> None:
        now, wall_time = self.clock(), time.time()
        try:
            payload = [frame.bytes for frame in frames]
            accepted = self.intake.take(payload, now=now, wall_time=wall_time)
        except MalformedRegistration as error:
            sender = _address_of(frames[-1])
            if self.intake.is_first_complaint(f"{sender} {error.reason}"):
                logger.warning("dropped a registration from %s: %s", sender, error)
        else:
            if accepted.ours and self._replies.due(payload[0]):
                self._router.send_multipart([payload[0], REPLY], zmq.NOBLOCK)
            if accepted.joined:
                log_joined(accepted.joined)

    async def _expire_nodes(self) -> None:
        """Heartbeats that came while this process itself was stopped are still to be read."""
        registry, looked_at = self.intake.registry, self.clock()
        while True:
            await asyncio.sleep(self.look_s)
            before, looked_at = looked_at, self.clock()
            if looked_at - before >= registry.ttl_s / 2:
                registry.mark_all_heard(now=looked_at)
            for node in registry.expire(now=looked_at):
                silent = node.registration.state is State.READY
                why = "silent" if silent else "it had said that it takes no more work"
                logger.info("%s left: %s", describe(node), why)
            warn_of_misfits(registry)


def describe(node: Node) -> str:
    """A node in a log line."""
    said = node.registration
    return (
        f"{said.type.name.lower()} node {said.http_address} "
        f"(node_id {said.node_id}, model {said.model})"
    )


def log_joined(joined: JoinedNode) -> None:
    """Log that a node is new."""
    if joined.replaced and joined.replaced.node_id == joined.node.node_id:
        logger.info("%s has changed its role", describe(joined.node))
    elif joined.replaced:
        logger.info("%s replaces %s", describe(joined.node), describe(joined.replaced))
    else:
        logger.info("%s joined", describe(joined.node))


def warn_of_misfits(registry: Registry) -> None:
    """Log each node that pairs with no node, once, whoever came or went to make it so."""
    for node, why in registry.new_misfits():
        logger.warning("%s fits nobody: %s", describe(node), why)


def _bind(router: zmq.Socket[bytes], host: str, port: int) -> int:
    """Bind; a name is resolved first, since ZMQ binds only to addresses."""
    router.setsockopt(zmq.LINGER, 0)
    router.setsockopt(zmq.IPV6, 1)
    router.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a restarted vLLM node keeps its identity
    router.setsockopt(zmq.MAXMSGSIZE, LARGEST_READ)
    router.setsockopt(zmq.RCVHWM, MOST_UNREAD)
    # otherwise connections of hosts that are gone would stay forever
    for option, value in WATCH.items():
        router.setsockopt(option, value)
    _, address = passive_address(host, port, "--discovery-host")
    router.bind(f"tcp://{format_address(address, port or '*')}")
    endpoint = router.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return int(endpoint.rstrip(b"\0").rpartition(b":")[2])


def _address_of(frame: zmq.Frame) -> str:
    try:
        return str(frame.get("Peer-Address")).removeprefix(MAPPED)
    except zmq.ZMQError:
        return "somebody"
